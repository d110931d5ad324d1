from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from llm_inference.engine.base import Engine, ReportsStats, Tokenizes
from llm_inference.engine.byte_tokens import BOS_TOKEN_ID
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, Grammar, Prompt, SamplingParams
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError


def request(
    prompt: Prompt = "hello", *, echo: bool = False, tool_choice: Any = None, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        model="fake",
        prompt=prompt,
        sampling=SamplingParams(**sampling),
        echo=echo,
        tool_choice=tool_choice,
    )


async def run(engine: FakeEngine, wanted: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(wanted)]


def text_of(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


async def test_it_is_an_engine_with_its_optional_powers() -> None:
    engine: Engine = FakeEngine()
    assert isinstance(engine, Tokenizes)
    assert isinstance(engine, ReportsStats)
    await engine.start()
    assert (await engine.health()).ready
    await engine.stop(0)
    assert not (await engine.health()).live


async def test_tokenizer_is_that_of_its_prompts() -> None:
    engine = FakeEngine()
    result = await engine.tokenize("hé")
    assert result.token_ids == (BOS_TOKEN_ID, *"hé".encode())
    assert (result.tokens[:2], result.max_model_len) == (("", "h"), 4096)
    assert await engine.detokenize(result.token_ids) == "hé"
    assert (await run(engine, request("hé")))[0].prompt_token_ids == result.token_ids


async def test_it_repeats_what_it_was_told() -> None:
    engine = FakeEngine()
    for prompt in (
        "héllo 👋",
        tuple("héllo 👋".encode()),
        ChatPrompt(messages=({"role": "user", "content": "héllo 👋"},)),
    ):
        deltas = await run(engine, request(prompt))
        assert text_of(deltas) == "héllo 👋"
        assert not any("\ufffd" in delta.text for delta in deltas)
    assert engine.stats().generation_tokens == 3 * len("héllo 👋".encode())


async def test_contract_of_the_deltas() -> None:
    engine = FakeEngine(script=FakeScript(answers=["a", "bbb"]))
    deltas = await run(engine, request(n=3))
    assert [text_of(deltas, index) for index in range(3)] == ["a", "bbb", "a"]
    for index in range(3):
        mine = [delta for delta in deltas if delta.index == index]
        assert [delta.finish_reason for delta in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert deltas[0].prompt_token_ids == (BOS_TOKEN_ID, *b"hello")
    assert deltas[-1].usage is not None
    assert (deltas[-1].usage.prompt_tokens, deltas[-1].usage.completion_tokens) == (6, 5)
    assert deltas[-1].timing is not None
    assert deltas[-1].timing.ttft_s <= deltas[-1].timing.total_s
    assert (engine.finished, engine.aborted) == (["r"], [])


@pytest.mark.parametrize(
    ("sampling", "text", "finish", "reason"),
    [
        ({"max_tokens": 3}, "hel", "length", None),
        ({"max_tokens": 5}, "hello", "stop", None),
        ({"stop": ("lo", "el")}, "h", "stop", "el"),
        ({"stop": ("el",), "include_stop_str_in_output": True}, "hel", "stop", "el"),
        ({"stop": ("zzz",)}, "hello", "stop", None),
        ({"ignore_eos": True, "max_tokens": 12}, "hellohellohe", "length", None),
    ],
)
async def test_ends(sampling: dict[str, Any], text: str, finish: str, reason: str | None) -> None:
    deltas = await run(FakeEngine(), request(**sampling))
    assert text_of(deltas) == text
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (finish, reason)


async def test_a_character_cut_by_the_limit_ends_as_its_tail() -> None:
    deltas = await run(FakeEngine(), request("a👋", max_tokens=3))
    assert text_of(deltas) == "a\ufffd"
    assert deltas[-1].finish_reason == "length"


async def test_logprobs_and_echo() -> None:
    deltas = await run(FakeEngine(), request((97, 98), echo=True, logprobs=2, max_tokens=1))
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert text_of(deltas) == "aba"
    assert [entry.token for entry in entries] == ["a", "b", "a"]
    assert [entry.logprob for entry in entries] == [None, -0.5, -0.5]
    assert [entry.text_offset for entry in entries] == [0, 1, 2]
    assert [top[2] for top in entries[1].top] == [-0.5, -1.5]
    scored = await run(FakeEngine(), request((97, 98), echo=True, logprobs=0, max_tokens=0))
    assert text_of(scored) == "ab"
    assert scored[-1].finish_reason == "length"
    nan = await run(FakeEngine(script=FakeScript(logprob=math.nan)), request(logprobs=0))
    assert all(math.isnan(entry.logprob or 0.0) for delta in nan for entry in delta.logprobs or ())
    assert all(delta.logprobs is None for delta in await run(FakeEngine(), request()))


async def test_forced_tool_call() -> None:
    tools = tuple({"type": "function", "function": {"name": name}} for name in ("a", "b"))
    prompt = ChatPrompt(messages=({"role": "user", "content": "x"},), tools=tools)
    for choice, name in (("required", "a"), (tools[1], "b")):
        deltas = await run(FakeEngine(), request(prompt, tool_choice=choice))
        calls = [call for delta in deltas for call in delta.tool_calls]
        assert [call.name for call in calls] == [name, None]
        assert "".join(call.arguments for call in calls) == "{}"
        assert deltas[-1].finish_reason == "tool_calls"
    assert not any(delta.tool_calls for delta in await run(FakeEngine(), request(prompt, tool_choice="auto")))


async def test_grammars() -> None:
    assert text_of(await run(FakeEngine(), request(grammar=Grammar("choice", '["yes", "no"]')))) == "yes"
    assert text_of(await run(FakeEngine(), request(grammar=Grammar("json_object", "{}")))) == "{}"
    for grammar in (Grammar("regex", "("), Grammar("json_schema", '{"type": "strin"}')):
        with pytest.raises(InvalidRequestError):
            await run(FakeEngine(), request(grammar=grammar))


async def test_context_is_a_limit() -> None:
    engine = FakeEngine(max_model_len=8)
    assert text_of(await run(engine, request("abcd"))) == "abc"  # five tokens with the beginning's, three are left
    for wrong in (request("abcdefgh"), request("abcd", max_tokens=4)):
        with pytest.raises(ContextLengthError, match="8 tokens"):
            await run(engine, wrong)


async def test_failures_on_command() -> None:
    first = FakeEngine(script=FakeScript(fail_after=0))
    with pytest.raises(EngineError):
        await run(first, request())
    third = FakeEngine(script=FakeScript(fail_after=3, error=ValueError("mine")))
    generator = third.generate(request())
    texts = [(await anext(generator)).text for _ in range(3)]
    assert texts == ["h", "e", "l"]
    with pytest.raises(ValueError, match="mine"):
        await anext(generator)
    assert third.aborted == []
    assert third.stats().num_running == 0


async def test_closing_aborts() -> None:
    engine = FakeEngine(script=FakeScript(hang_after=1))
    generator = engine.generate(request())
    assert (await anext(generator)).text == "h"
    assert engine.stats().num_running == 1
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(anext(generator), 0.01)
    await generator.aclose()
    assert (engine.aborted, engine.finished, engine.stats().num_running) == (["r"], [], 0)
