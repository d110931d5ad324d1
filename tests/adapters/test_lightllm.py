from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.lightllm import LightLLMDialect
from llm_inference.engine.types import Grammar, Usage
from llm_inference.errors import EngineError, InvalidRequestError
from tests.adapters.generate_model import make_engine
from tests.adapters.replay import CutBackend, chat, many_cuts, one_cut, outcome, request, run, usage_of

FRAMES = ("004_api_param_rst_L101_sse", "005_api_param_rst_L103_sse", "006_api_param_rst_L105_sse")


@pytest.fixture(scope="module")
def frames(shared_dir: Path) -> list[Any]:
    """The documented stream's events."""
    return [json.loads((shared_dir / "fixtures" / "lightllm" / f"{name}.json").read_text()) for name in FRAMES]


@pytest.fixture(scope="module")
def reply(shared_dir: Path) -> Any:
    return json.loads((shared_dir / "fixtures" / "lightllm" / "003_api_param_rst_L73.json").read_text())


def framed(frames: Sequence[Any]) -> bytes:
    """As LightLLM frames them: no space, no [DONE]."""
    return b"".join(b"data:" + json.dumps(frame, ensure_ascii=False).encode() + b"\n\n" for frame in frames)


async def test_the_documented_stream_cut_anywhere(prompts: PromptSide, frames: list[Any]) -> None:
    body = framed(frames)
    for chunks in (*one_cut(body), *many_cuts(body)):
        deltas = await run(make_engine(LightLLMDialect(), CutBackend(chunks), prompts), request(logprobs=0))
        got = outcome(deltas)
        assert (got.text, got.finish_reason) == (" What is the", "length")
        assert got.token_ids == (3555, 374, 279)
        assert got.logprobs == pytest.approx((-1.8383026, -0.5918539, -1.5594440), abs=1e-6)
        assert usage_of(deltas) == Usage(prompt_tokens=4, completion_tokens=3)


async def test_the_documented_reply(prompts: PromptSide, reply: Any) -> None:
    backend = CutBackend([json.dumps(reply).encode()], content_type="application/json")
    engine = make_engine(LightLLMDialect(), backend, prompts, stream=False)
    deltas = await run(engine, request(max_tokens=17, frequency_penalty=1.0))
    assert outcome(deltas).text == reply["generated_text"][0]
    assert outcome(deltas).finish_reason == "length"
    assert usage_of(deltas) == Usage(prompt_tokens=4, completion_tokens=17)
    [(path, body)] = backend.posted
    assert (path, body["inputs"]) == ("/generate", "What is AI?")
    assert body["parameters"]["max_new_tokens"] == 17
    assert body["parameters"]["frequency_penalty"] == 1.0


@pytest.mark.parametrize("as_lists", [False, True])
async def test_a_whole_reply_reads_as_its_stream(prompts: PromptSide, frames: list[Any], as_lists: bool) -> None:
    """One result comes bare; where a version sends lists of one all the same, that is the same result."""
    tokens = [{**frame["token"]} for frame in frames]
    whole: dict[str, Any] = {"count_output_tokens": 3, "finish_reason": "length", "tokens": tokens}
    if as_lists:
        whole = {name: [value] for name, value in whole.items()}
    whole |= {"generated_text": [" What is the"], "prompt_tokens": 4}
    streamed = make_engine(LightLLMDialect(), CutBackend([framed(frames)]), prompts)
    replied = make_engine(
        LightLLMDialect(),
        CutBackend([json.dumps(whole).encode()], content_type="application/json"),
        prompts,
        stream=False,
    )
    wanted = request(logprobs=0)
    first, second = await run(streamed, wanted), await run(replied, wanted)
    assert outcome(first) == outcome(second)
    assert usage_of(first) == usage_of(second)


async def test_a_stop_string_over_tokens_is_held_back(prompts: PromptSide, frames: list[Any]) -> None:
    deltas = await run(make_engine(LightLLMDialect(), CutBackend([framed(frames)]), prompts), request(stop=("at is",)))
    assert outcome(deltas).text == " Wh"
    assert (outcome(deltas).finish_reason, outcome(deltas).stop_reason) == ("stop", "at is")


async def test_a_stop_token_is_not_shown(prompts: PromptSide, frames: list[Any]) -> None:
    engine = make_engine(LightLLMDialect(), CutBackend([framed(frames)]), prompts)
    got = outcome(await run(engine, request(stop_token_ids=(374,))))
    assert (got.text, got.token_ids, got.finish_reason, got.stop_reason) == (" What", (3555,), "stop", 374)


async def test_the_end_must_be_said(prompts: PromptSide, frames: list[Any]) -> None:
    with pytest.raises(EngineError, match="ended before its end"):
        await run(make_engine(LightLLMDialect(), CutBackend([framed(frames[:2])]), prompts), request())


async def test_what_it_is_asked(prompts: PromptSide, frames: list[Any]) -> None:
    backend = CutBackend([framed(frames)])
    engine = make_engine(LightLLMDialect(), backend, prompts)
    await run(engine, request(chat("Hi"), temperature=0.0, min_tokens=2))
    await run(engine, request(temperature=0.5, top_k=40, grammar=Grammar("choice", '["a.b", "c"]')))
    (_, first), (_, second) = backend.posted
    assert first["inputs"] == "<s>[user]Hi[a]"
    assert first["parameters"]["add_special_tokens"] is False
    assert first["parameters"]["do_sample"] is False
    assert first["parameters"]["min_new_tokens"] == 2
    assert first["parameters"]["max_new_tokens"] == 1000 - len("[user]Hi[a]") - 1
    assert second["parameters"]["add_special_tokens"] is True
    assert second["parameters"]["do_sample"] is True
    assert (second["parameters"]["temperature"], second["parameters"]["top_k"]) == (0.5, 40)
    assert second["parameters"]["regular_constraint"] == r"(a\.b|c)"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"frequency_penalty": -1.0}, "frequency_penalty"),
        ({"presence_penalty": -0.5}, "presence_penalty"),
        ({"repetition_penalty": 0.9}, "repetition_penalty"),
        ({"grammar": Grammar("grammar", "start: A")}, "structured_outputs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_values_that_it_cannot_take(prompts: PromptSide, sampling: dict[str, Any], param: str) -> None:
    backend = CutBackend([b""])
    with pytest.raises(InvalidRequestError) as caught:
        await run(make_engine(LightLLMDialect(), backend, prompts), request(**sampling))
    assert caught.value.param == param
    assert backend.posted == []
