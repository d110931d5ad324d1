"""The real libraries on the default model. Skipped where they are not installed (`llm-inference engines install`)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from llm_inference.adapters.library import onnx, openvino
from llm_inference.adapters.library.engine import LibraryEngine
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, Grammar, Prompt, SamplingParams
from llm_inference.errors import ConfigError, EngineError, InvalidRequestError, ServiceError
from llm_inference.serve import open_engine

pytestmark = [pytest.mark.live_engine, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

CHAT = ChatPrompt(messages=({"role": "user", "content": "What is the capital of France?"},))
PROMPTS: tuple[Prompt, ...] = (CHAT, "The capital of France is", "def factorial(n):", "One, two, three,")


def config(engine: str, **more: Any) -> ModelConfig:
    return ModelConfig.model_validate(
        {"engine": engine, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 16, **more}
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["openvino", "onnx"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[LibraryEngine]:
    library = {"openvino": openvino, "onnx": onnx}[request.param].LIBRARY
    try:
        library.version(library.python(None))
    except ConfigError as error:
        pytest.skip(error.message)
    async with open_engine(config(request.param), progress=False) as opened:
        assert isinstance(opened, LibraryEngine)
        yield opened


async def answer(engine: Any, prompt: Prompt = CHAT, **sampling: Any) -> list[Delta]:
    params = SamplingParams(**{"max_tokens": 24, "temperature": 0.0, **sampling})
    return [
        d async for d in engine.generate(GenerateRequest(request_id="r", model="m", prompt=prompt, sampling=params))
    ]


def text(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def ids(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_a_question(engine: LibraryEngine) -> None:
    deltas = await answer(engine)
    assert "Paris" in text(deltas)
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == len(ids(deltas)) + 1
    assert "float32" in engine.info.precision


async def test_the_native_engine_says_the_same(engine: LibraryEngine) -> None:
    theirs = [ids(await answer(engine, prompt)) for prompt in PROMPTS]
    async with open_engine(config("native"), progress=False) as native:
        ours = [ids(await answer(native, prompt)) for prompt in PROMPTS]
    agreed = sum(a == b for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=False))
    total = sum(map(len, ours))
    print(f"\n{engine.info.engine}: {agreed} of {total} greedy tokens as native's")
    assert agreed >= 0.9 * total


async def test_sixteen_at_once_equal_each_alone(engine: LibraryEngine) -> None:
    prompts = [f"{number} The capital of France is" for number in range(4)]
    alone = [text(await answer(engine, prompt, max_tokens=8)) for prompt in prompts]
    begun_s = time.monotonic()
    together = await asyncio.gather(*(answer(engine, prompts[i % 4], max_tokens=8) for i in range(16)))
    print(f"\n{engine.info.engine}: 16 × 8 tokens in {time.monotonic() - begun_s:.1f} s")
    assert [text(deltas) for deltas in together] == alone * 4


async def test_sampling_has_its_effect(engine: LibraryEngine) -> None:
    drawn: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8}
    once, again = await answer(engine, seed=7, **drawn), await answer(engine, seed=7, **drawn)
    assert text(once) == text(again)
    hot: dict[str, Any] = {"temperature": 5.0, "max_tokens": 8}
    assert text(await answer(engine, **hot)) != text(await answer(engine, **hot)), "no seed: not the same again"
    best = text(await answer(engine, max_tokens=8))
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert text(await answer(engine, **hot, **narrow)) == best
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 5.0}):
        repeating = "one two one two one two one two one two"
        assert text(await answer(engine, repeating, **penalty)) != text(await answer(engine, repeating))
    three = await answer(engine, n=3, seed=5, **hot)
    assert len({text(three, index) for index in range(3)}) == 3


async def test_ends(engine: LibraryEngine) -> None:
    whole = await answer(engine)
    stop = ids(whole)[3]
    for ignore_eos in (False, True):
        deltas = await answer(engine, stop_token_ids=(stop,), ignore_eos=ignore_eos)
        assert ids(deltas) == ids(whole)[:3]
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    assert len(ids(await answer(engine, ignore_eos=True, max_tokens=12))) == 12
    longer = await answer(engine, min_tokens=12, max_tokens=16)
    assert longer[-1].usage is not None
    assert longer[-1].usage.completion_tokens >= 12
    assert text(await answer(engine, stop=("France",))) == text(whole).partition("France")[0]


async def test_log_probabilities(engine: LibraryEngine) -> None:
    plain = [entry for delta in await answer(engine, logprobs=0) for entry in delta.logprobs or ()]
    hot = [d for d in await answer(engine, logprobs=0, temperature=3.0, top_k=1) if d.logprobs]
    assert plain[0].logprob is not None
    assert -3 < plain[0].logprob < 0
    assert [entry.logprob for delta in hot for entry in delta.logprobs or ()] == [
        pytest.approx(entry.logprob, abs=1e-3) for entry in plain
    ], "of the model's own distribution, whatever the temperature"


async def test_constraints(engine: LibraryEngine) -> None:
    chosen = await answer(engine, grammar=Grammar("choice", '["red", "blue"]'))
    assert text(chosen) in ("red", "blue")
    schema = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}'
    assert text(await answer(engine, grammar=Grammar("json_schema", schema))).lstrip().startswith("{")
    running = asyncio.create_task(answer(engine, ignore_eos=True, max_tokens=40))
    await asyncio.sleep(0.05)
    with pytest.raises(InvalidRequestError):
        await answer(engine, grammar=Grammar("regex", "(("))
    assert len(ids(await running)) == 40, "what one client sends is not the others' error"


async def test_beams(engine: LibraryEngine) -> None:
    if engine.capabilities.support("num_beams") == "refused":
        pytest.skip("it has none")
    deltas = await answer(engine, num_beams=3, n=2)
    assert "Paris" in text(deltas, 0)
    assert text(deltas, 1) not in ("", text(deltas, 0))
    assert deltas[-1].usage is not None


async def test_closing_ends_the_work(engine: LibraryEngine) -> None:
    params = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.0)
    generator = engine.generate(GenerateRequest(request_id="r", model="m", prompt=CHAT, sampling=params))
    await anext(generator)
    await generator.aclose()
    deadline = time.monotonic() + 60
    while engine.stats().num_running:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_killed_worker_is_one_error_and_comes_back(engine: LibraryEngine) -> None:
    pid = engine.pid
    assert pid is not None
    params = SamplingParams(max_tokens=400, ignore_eos=True, temperature=0.0)
    generator = engine.generate(GenerateRequest(request_id="r", model="m", prompt=CHAT, sampling=params))
    await anext(generator)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        async for _ in generator:
            pass
    deadline = time.monotonic() + 120
    while True:
        try:
            assert "Paris" in text(await answer(engine))
            break
        except ServiceError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
    assert engine.stats().num_restarts == 1
    assert engine.pid not in (None, pid)
