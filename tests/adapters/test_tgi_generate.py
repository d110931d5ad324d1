from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.tgi_generate import TGIDialect
from llm_inference.engine.types import Grammar, Usage
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError, OverloadedError
from tests.adapters.generate_model import make_engine
from tests.adapters.replay import CutBackend, chat, many_cuts, one_cut, outcome, request, run, usage_of

#: Replies of real servers with `return_full_text` off. The others repeat the prompt, which is never asked for here.
REPLIES = (
    "test_bloom_560m/test_bloom_560m.json",
    "test_flash_gpt2/test_flash_gpt2.json",
    "test_flash_grammar_llama/test_flash_llama_grammar_json.json",
    "test_flash_llama/test_flash_llama_simple.json",
    "test_flash_starcoder/test_flash_starcoder_default_params.json",
    "test_grammar_llama/test_non_flash_llama_grammar_json.json",
    "test_lora_mistral/test_lora_mistral_with_dbpedia_adapter.json",
)
REASONS = {"length": "length", "eos_token": "stop", "stop_sequence": "stop"}


def recorded(shared_dir: Path, name: str) -> tuple[int, bytes]:
    """(status, body) of a recorded exchange."""
    [exchange] = json.loads((shared_dir / "fixtures" / "tgi_recorded" / f"{name}.json").read_text())["interactions"]
    return exchange["status"], exchange["response_body"].encode()


def as_stream(reply: dict[str, Any]) -> bytes:
    """The frames in which the same server would have streamed this reply."""
    details, frames = reply["details"], []
    for place, token in enumerate(details["tokens"], 1):
        last = place == len(details["tokens"])
        end = {key: details[key] for key in ("finish_reason", "generated_tokens", "seed")}
        frame = {
            "index": place,
            "token": token,
            "generated_text": reply["generated_text"] if last else None,
            "details": {**end, "input_length": len(details["prefill"])} if last else None,
        }
        frames.append(b"data: " + json.dumps(frame).encode() + b"\n\n")
    return b"".join(frames)


@pytest.mark.parametrize("name", REPLIES)
async def test_recorded_replies_streamed_and_whole(shared_dir: Path, prompts: PromptSide, name: str) -> None:
    reply = json.loads((shared_dir / "fixtures" / "tgi" / name).read_text())
    details = reply["details"]
    visible = [token for token in details["tokens"] if not token["special"]]
    wanted = request(logprobs=0)
    whole = CutBackend([json.dumps(reply).encode()], content_type="application/json")
    deltas = await run(make_engine(TGIDialect(), whole, prompts, stream=False), wanted)
    got = outcome(deltas)
    assert got.text == reply["generated_text"]
    assert got.finish_reason == REASONS[details["finish_reason"]]
    assert got.token_ids == tuple(token["id"] for token in visible)
    assert got.logprobs == tuple(token["logprob"] for token in visible)
    assert usage_of(deltas).completion_tokens == details["generated_tokens"]
    for chunks in many_cuts(as_stream(reply), times=10):
        streamed = await run(make_engine(TGIDialect(), CutBackend(chunks), prompts), wanted)
        assert outcome(streamed) == got
        assert usage_of(streamed).completion_tokens == details["generated_tokens"]


async def test_the_recorded_stream_cut_anywhere(shared_dir: Path, prompts: PromptSide) -> None:
    _, body = recorded(shared_dir, "test_async_generate_stream_with_details")
    for chunks in (*one_cut(body), *many_cuts(body)):
        deltas = await run(make_engine(TGIDialect(), CutBackend(chunks), prompts), request(logprobs=0))
        got = outcome(deltas)
        assert (got.text, got.token_ids, got.logprobs, got.finish_reason) == (".", (13,), (-2.877385,), "length")
        assert usage_of(deltas) == Usage(prompt_tokens=1, completion_tokens=1)


@pytest.mark.parametrize(("max_tokens", "reason"), [(1, "length"), (5, "stop")])
async def test_without_details_the_reason_is_inferred(
    shared_dir: Path, prompts: PromptSide, max_tokens: int, reason: str
) -> None:
    _, streamed = recorded(shared_dir, "test_async_generate_stream_no_details")
    _, whole = recorded(shared_dir, "test_async_generate_no_details")
    wanted = request("test", max_tokens=max_tokens)
    for backend, stream in (
        (CutBackend([streamed]), True),
        (CutBackend([whole], content_type="application/json"), False),
    ):
        deltas = await run(make_engine(TGIDialect(), backend, prompts, stream=stream), wanted)
        assert (outcome(deltas).text, outcome(deltas).finish_reason) == (".", reason)
        # "<s>test" and "." by our tokenizer of bytes.
        assert usage_of(deltas) == Usage(prompt_tokens=5, completion_tokens=1)


async def test_best_of_gives_the_likeliest_sequences(shared_dir: Path, prompts: PromptSide) -> None:
    _, body = recorded(shared_dir, "test_async_generate_best_of")
    backend = CutBackend([body], content_type="application/json")
    deltas = await run(make_engine(TGIDialect(), backend, prompts), request("test", n=2, best_of=2, logprobs=0))
    assert [outcome(deltas, index).text for index in (0, 1)] == ["us", "esh"]
    assert [outcome(deltas, index).logprobs for index in (0, 1)] == [(-7.5679407,), (-10.5153055,)]
    assert usage_of(deltas) == Usage(prompt_tokens=1, completion_tokens=2)
    [(path, sent)] = backend.posted
    assert (path, sent["parameters"]["best_of"]) == ("/generate", 2)
    single = await run(make_engine(TGIDialect(), backend, prompts), request("test", best_of=2))
    assert outcome(single).text == "us"
    assert {delta.index for delta in single} == {0}


async def test_echo_with_the_prompts_logprobs(shared_dir: Path, prompts: PromptSide) -> None:
    reply = json.loads((shared_dir / "fixtures" / "tgi" / "test_bloom_560m" / "test_bloom_560m.json").read_text())
    backend = CutBackend([json.dumps(reply).encode()], content_type="application/json")
    text = "Pour déguster un ortolan, il faut tout d'abord"
    deltas = await run(
        make_engine(TGIDialect(), backend, prompts), request(text, echo=True, logprobs=0, prompt_logprobs=0)
    )
    prefill = reply["details"]["prefill"]
    echo = deltas[0]
    assert echo.text == text
    assert echo.logprobs is not None
    assert [entry.logprob for entry in echo.logprobs] == [token["logprob"] for token in prefill]
    assert echo.logprobs[0].logprob is None
    assert outcome(deltas).text == text + reply["generated_text"]
    assert deltas[1].logprobs is not None
    assert deltas[1].logprobs[0].text_offset == len(text)
    assert usage_of(deltas).prompt_tokens == len(prefill)
    assert backend.posted[0][1]["parameters"]["decoder_input_details"] is True


async def test_alternatives_are_sorted(prompts: PromptSide) -> None:
    def token(token_id: int, text: str, value: float) -> dict[str, Any]:
        return {"id": token_id, "text": text, "logprob": value, "special": False}

    frame = {
        "token": token(1, "a", -0.5),
        "top_tokens": [token(2, "b", -2.0), token(1, "a", -0.5)],
        "generated_text": "a",
        "details": {"finish_reason": "eos_token", "generated_tokens": 1},
    }
    backend = CutBackend([b"data: " + json.dumps(frame).encode()])
    deltas = await run(make_engine(TGIDialect(), backend, prompts), request(logprobs=2))
    assert deltas[0].logprobs is not None
    assert deltas[0].logprobs[0].top == ((1, "a", -0.5, b"a"), (2, "b", -2.0, b"b"))
    assert backend.posted[0][1]["parameters"]["top_n_tokens"] == 2


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": "Input validation error: `stop` …", "error_type": "validation"}, InvalidRequestError),
        (
            {"error": "… must be <= 9. Given: 1 `inputs` tokens and 10 `max_new_tokens`", "error_type": "validation"},
            ContextLengthError,
        ),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, OverloadedError),
        ({"error": "Request failed during generation", "error_type": "generation"}, EngineError),
    ],
)
@pytest.mark.parametrize("framing", [b"data:%s\n\n", b"%s"])
async def test_errors_inside_a_stream(
    prompts: PromptSide, error: dict[str, str], kind: type[Exception], framing: bytes
) -> None:
    body = framing % json.dumps(error).encode()
    with pytest.raises(kind) as caught:
        await run(make_engine(TGIDialect(), CutBackend([body]), prompts), request())
    assert type(caught.value) is kind


async def test_what_it_is_asked(shared_dir: Path, prompts: PromptSide) -> None:
    _, body = recorded(shared_dir, "test_async_generate_stream_with_details")
    backend = CutBackend([body])
    engine = make_engine(TGIDialect(), backend, prompts)
    await run(engine, request(chat("Hi"), temperature=0.0, seed=3))
    await run(engine, request(temperature=0.7, top_p=0.9, top_k=5, seed=0, grammar=Grammar("json_object", "")))
    await run(engine, request((0, 67, 68)))
    (path, first), (_, second), (_, third) = backend.posted
    assert path == "/generate_stream"
    # The server's tokenizer adds the BOS that the template has written.
    assert first["inputs"] == "[user]Hi[a]"
    assert first["parameters"]["do_sample"] is False
    assert not {"temperature", "top_p", "top_k", "seed"} & first["parameters"].keys()
    assert first["parameters"]["return_full_text"] is False
    assert second["parameters"]["seed"] > 0
    assert (second["parameters"]["top_p"], second["parameters"]["top_k"]) == (0.9, 5)
    assert second["parameters"]["grammar"] == {"type": "json", "value": {"type": "object"}}
    assert third["inputs"] == prompts.tokenizer.decode((67, 68))


async def test_stop_strings_are_told_only_where_nothing_streams(shared_dir: Path, prompts: PromptSide) -> None:
    _, body = recorded(shared_dir, "test_async_generate_with_details")
    backend = CutBackend([body], content_type="application/json")
    engine = make_engine(TGIDialect(), backend, prompts, stream=False)
    await run(engine, request(stop=("x",)))
    await run(engine, request(stop=("x",), include_stop_str_in_output=True))
    assert backend.posted[0][1]["parameters"]["stop"] == ["x"]
    assert "stop" not in backend.posted[1][1]["parameters"]


async def test_lark_grammars_are_refused(prompts: PromptSide) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        await run(make_engine(TGIDialect(), CutBackend([b""]), prompts), request(grammar=Grammar("grammar", "start:")))
