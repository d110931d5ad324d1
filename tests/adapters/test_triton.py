from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.tgi_generate import create as create_tgi
from llm_inference.adapters.triton import TritonDialect
from llm_inference.adapters.triton_grpc import GrpcBackend
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import Delta, Grammar, Usage
from llm_inference.errors import ConfigError, EngineError, InvalidRequestError
from tests.adapters.generate_model import configuration, make_engine, write_tokenizer
from tests.adapters.replay import (
    CutBackend,
    drain,
    event_stream,
    json_reply,
    many_cuts,
    one_cut,
    outcome,
    replaying,
    request,
    run,
    usage_of,
)

#: The inputs of the LLM API backend that matter here, by its config.pbtxt.
LLM_API = ("text_input", "streaming", "sampling_param_temperature", "sampling_param_top_p", "sampling_param_max_tokens")


def load(shared_dir: Path, name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((shared_dir / "fixtures" / "triton_trtllm" / name).read_text())
    return event


def model_config(inputs: tuple[str, ...], *, decoupled: bool = True, required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "name": "ensemble",
        "input": [{"name": name, "optional": name not in required} for name in inputs],
        "model_transaction_policy": {"decoupled": decoupled},
    }


def events(*texts: str, **more: Any) -> bytes:
    return b"".join(b"data: " + json.dumps({"text_output": text, **more}).encode() + b"\n\n" for text in texts)


async def test_every_recorded_reply(shared_dir: Path, prompts: PromptSide) -> None:
    names = sorted(path.name for path in (shared_dir / "fixtures" / "triton_trtllm").glob("*.json"))
    assert len(names) == 11
    for name in names:
        event = load(shared_dir, name)
        backend = CutBackend([json.dumps(event).encode()], content_type="application/json")
        engine = make_engine(TritonDialect({}), backend, prompts, stream=False)
        deltas = await run(engine, request("Say.", max_tokens=500))
        assert outcome(deltas).text == event["text_output"]
        assert outcome(deltas).finish_reason == "stop"
        # A byte is a token here.
        assert usage_of(deltas) == Usage(5, len(event["text_output"].encode()))


async def test_the_recorded_event_cut_anywhere(shared_dir: Path, prompts: PromptSide) -> None:
    event = load(shared_dir, "011_multimodal_md_L309_sse.json")
    body = b"data: " + json.dumps(event).encode() + b"\n\n"
    for chunks in (*one_cut(body), *many_cuts(body)):
        deltas = await run(make_engine(TritonDialect({}), CutBackend(chunks), prompts), request(max_tokens=900))
        assert (outcome(deltas).text, outcome(deltas).finish_reason) == (event["text_output"], "stop")


@pytest.mark.parametrize(("max_tokens", "reason"), [(9, "length"), (10, "stop")])
async def test_a_stream_ends_with_its_body(prompts: PromptSide, max_tokens: int, reason: str) -> None:
    body = events("one ", "two ", "3")
    for chunks in many_cuts(body, times=10):
        deltas = await run(make_engine(TritonDialect({}), CutBackend(chunks), prompts), request(max_tokens=max_tokens))
        assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("one two 3", reason)
        assert [delta.text for delta in deltas] == ["one ", "two ", "3", ""]


async def test_an_error_after_the_first_event(prompts: PromptSide) -> None:
    body = events("one ") + b'data: {"error": "in ensemble: boom"}\n\n'
    deltas: list[Delta] = []
    with pytest.raises(EngineError, match="in ensemble: boom"):
        await drain(make_engine(TritonDialect({}), CutBackend([body]), prompts).generate(request()), deltas)
    assert [delta.text for delta in deltas] == ["one "]


async def test_an_empty_stream_is_an_error(prompts: PromptSide) -> None:
    with pytest.raises(EngineError, match="ended before its end"):
        await run(make_engine(TritonDialect({}), CutBackend([b""]), prompts), request())


async def test_accumulated_tokens(prompts: PromptSide) -> None:
    body = events("a", "ab", "abc")
    engine = make_engine(TritonDialect({"accumulate_tokens": True}), CutBackend([body]), prompts)
    assert outcome(await run(engine, request())).text == "abc"
    wrong = make_engine(TritonDialect({"accumulate_tokens": True}), CutBackend([events("a", "b")]), prompts)
    with pytest.raises(EngineError, match="accumulate_tokens"):
        await run(wrong, request())


async def test_inputs_of_the_ensemble(prompts: PromptSide) -> None:
    backend = CutBackend([events("x")])
    engine = make_engine(TritonDialect({}), backend, prompts)
    await run(engine, request(temperature=0.0, seed=5, min_tokens=2))
    await run(engine, request(temperature=0.5, top_k=3, seed=-1, grammar=Grammar("json_schema", '{"type": "array"}')))
    (path, first), (_, second) = backend.posted
    assert path == "/v2/models/m/generate_stream"
    assert (first["text_input"], first["stream"], first["exclude_input_in_output"]) == ("What is AI?", True, True)
    assert (first["top_k"], first["min_tokens"]) == (1, 2)
    assert not {"temperature", "seed"} & first.keys()
    assert (second["temperature"], second["top_k"], second["seed"]) == (0.5, 3, 2**64 - 1)
    assert second["guided_decoding_guide_type"] == "json_schema"
    assert second["guided_decoding_guide"] == '{"type": "array"}'


async def test_the_model_says_what_it_takes(shared_dir: Path, prompts: PromptSide) -> None:
    """The LLM API backend in a version that cannot leave the prompt out, and that does not stream."""
    event = load(shared_dir, "010_llmapi_md_L45.json")
    prompt = "Please explain to me what is machine learning? "
    replies = {
        "/v2/health/ready": json_reply(None),
        "/v2/models/m/config": json_reply(
            model_config((*LLM_API, "stop_words"), decoupled=False, required=("stop_words",))
        ),
        "/v2/models/m/generate": json_reply(event),
    }
    async with replaying(replies) as server:
        engine = make_engine(TritonDialect({}), HttpBackend("triton", server.url), prompts)
        assert engine.capabilities.support("top_k") == "enforced"
        await engine.start()
        assert engine.capabilities.support("top_k") == "refused"
        assert "no such input" in engine.capabilities.reasons["structured_outputs"]
        deltas = await run(engine, request(prompt, max_tokens=50))
        assert outcome(deltas).text == event["text_output"].removeprefix(prompt)
        assert outcome(deltas).text.startswith("\n\nMachine learning is")
        assert server.bodies("/v2/models/m/generate") == [
            {
                "text_input": prompt,
                "streaming": False,
                "sampling_param_max_tokens": 50,
                "sampling_param_temperature": 1.0,
                "sampling_param_top_p": 1.0,
                "stop_words": "",
            }
        ]
        await engine.stop(0)


async def test_the_prompt_is_taken_off_a_stream(prompts: PromptSide) -> None:
    config = json_reply(model_config(LLM_API))
    stream = event_stream(events("What ", "is ", "AI?", " It is", "."))
    replies = {
        "/v2/health/ready": json_reply(None),
        "/v2/models/m/config": config,
        "/v2/models/m/generate_stream": stream,
    }
    async with replaying(replies) as server:
        engine = make_engine(TritonDialect({}), HttpBackend("triton", server.url), prompts)
        await engine.start()
        assert outcome(await run(engine, request("What is AI?"))).text == " It is."
        assert outcome(await run(engine, request("What is AI? No."))).text == "What is AI? It is."
        await engine.stop(0)


async def test_an_unknown_model_is_found_at_the_start(prompts: PromptSide) -> None:
    replies = {"/v2/health/ready": json_reply(None), "/v2/models/m/config": json_reply({"error": "unknown"}, 400)}
    async with replaying(replies) as server:
        engine = make_engine(TritonDialect({}), HttpBackend("triton", server.url), prompts)
        with pytest.raises(ConfigError, match="no 'm'"):
            await engine.start()
        await engine.stop(0)


async def test_its_own_finish_reason_counts(prompts: PromptSide) -> None:
    body = events("a") + events("b", finish_reason="length")
    deltas = await run(make_engine(TritonDialect({}), CutBackend([body]), prompts), request(max_tokens=500))
    assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("ab", "length")


async def test_lark_grammars_are_refused(prompts: PromptSide) -> None:
    with pytest.raises(InvalidRequestError, match="Lark"):
        await run(make_engine(TritonDialect({}), CutBackend([b""]), prompts), request(grammar=Grammar("grammar", "x")))


def test_without_the_client_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc.aio", None)
    with pytest.raises(ConfigError, match=r"needs tritonclient.*llm-inference\[triton\]"):
        asyncio.run(GrpcBackend("triton", "grpc://127.0.0.1:8001").open())


def test_other_schemes_are_refused(tmp_path: Path) -> None:
    model = configuration(write_tokenizer(tmp_path), "grpc://127.0.0.1:1", "tgi-generate")
    with pytest.raises(ConfigError, match="must begin with http:// or https://"):
        create_tgi(model, EngineContext(run_dir=tmp_path))
