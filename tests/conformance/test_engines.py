"""One suite, every engine: what `engine/base.py` promises, asked of each in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from llm_inference.engine.base import ReportsStats
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, Prompt, SamplingParams
from llm_inference.errors import ContextLengthError, EngineError, ServiceError
from tests.conformance.engines import ENGINES, MAX_MODEL_LEN, Case, over_http, served

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

CHAT = ChatPrompt(messages=({"role": "user", "content": "What is the capital of France?"},))
TEXT = "The capital of France is"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(ENGINES))
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    async with ENGINES[request.param]() as made:
        yield made


_number = iter(range(10**9))


def work(prompt: Prompt = TEXT, **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **sampling})
    return GenerateRequest(request_id=f"conformance-{next(_number)}", model="m", prompt=prompt, sampling=params)


async def answer(case: Case, request: GenerateRequest) -> list[Delta]:
    """All deltas; the promises that hold for every answer are checked on the way."""
    deltas = [delta async for delta in case.engine.generate(request)]
    ended: set[int] = set()
    for delta in deltas:
        assert delta.index not in ended, "nothing comes after a choice's end"
        if delta.finish_reason is not None:
            ended.add(delta.index)
    assert ended == set(range(request.sampling.n))
    assert deltas[-1].usage is not None
    assert "�" not in text(deltas)
    return deltas


def text(deltas: Sequence[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def end(deltas: Sequence[Delta], index: int = 0) -> Delta:
    return [delta for delta in deltas if delta.index == index][-1]


async def test_chat(case: Case) -> None:
    deltas = await answer(case, work(CHAT, max_tokens=64))
    assert ("capital" if case.name == "fake" else "Paris") in text(deltas)
    assert end(deltas).finish_reason == "stop"


async def test_completion_of_text_and_of_token_ids(case: Case) -> None:
    written = text(await answer(case, work()))
    assert written
    ids = (await case.behind.tokenize(TEXT)).token_ids  # type: ignore[attr-defined]
    assert text(await answer(case, work(ids))) == written


async def test_max_tokens_and_usage(case: Case) -> None:
    for limit in (1, 5):
        deltas = await answer(case, work(max_tokens=limit, ignore_eos=True))
        usage = deltas[-1].usage
        assert usage is not None
        assert end(deltas).finish_reason == "length"
        assert usage.completion_tokens == limit
        ids = (await case.behind.tokenize(TEXT)).token_ids  # type: ignore[attr-defined]
        assert usage.prompt_tokens == len(ids)


async def test_no_max_tokens_goes_on_beyond_sixteen(case: Case) -> None:
    prompt = "a " * 30 if case.name == "fake" else "Once upon a time"
    deltas = await answer(case, work(prompt, max_tokens=None))
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens > 16


async def test_stop_strings(case: Case) -> None:
    whole = text(await answer(case, work(max_tokens=16)))
    stop = whole[4:7]
    deltas = await answer(case, work(max_tokens=16, stop=(stop,)))
    assert text(deltas) == whole[: whole.index(stop)]
    assert (end(deltas).finish_reason, end(deltas).stop_reason) == ("stop", stop)
    kept = await answer(case, work(max_tokens=16, stop=(stop,), include_stop_str_in_output=True))
    assert text(kept) == whole[: whole.index(stop)] + stop


async def test_n_and_seed(case: Case) -> None:
    sampling: dict[str, Any] = {"n": 3, "seed": 11, "temperature": 0.0 if case.name == "fake" else 1.0}
    once, again = await answer(case, work(**sampling)), await answer(case, work(**sampling))
    texts = [text(once, index) for index in range(3)]
    assert texts == [text(again, index) for index in range(3)]
    assert all(texts)
    usage = once[-1].usage
    single = (await answer(case, work()))[-1].usage
    assert usage is not None
    assert single is not None
    assert usage.prompt_tokens == single.prompt_tokens, "the prompt is counted once"


async def test_logprobs(case: Case) -> None:
    assert case.engine.capabilities.support("logprobs") == "enforced"
    for prompt in (TEXT, CHAT):
        deltas = await answer(case, work(prompt, logprobs=2, max_tokens=4))
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        assert deltas[-1].usage is not None
        assert len(entries) == deltas[-1].usage.completion_tokens
        for entry in entries:
            assert entry.logprob is not None
            assert entry.logprob <= 0
            assert len(entry.top) >= 2
            assert entry.top[0][2] == pytest.approx(max(top[2] for top in entry.top))


async def test_cancellation_ends_the_work(case: Case) -> None:
    generator = case.engine.generate(work(TEXT * 5, max_tokens=300, ignore_eos=True))
    await anext(generator)
    await generator.aclose()
    assert isinstance(case.behind, ReportsStats)
    deadline = asyncio.get_running_loop().time() + 10
    while case.behind.stats().num_running:
        assert asyncio.get_running_loop().time() < deadline, "the work goes on without a reader"
        await asyncio.sleep(0.02)
    assert text(await answer(case, work()))


async def test_a_prompt_over_the_context(case: Case) -> None:
    for prompt in ("word " * 4 * MAX_MODEL_LEN, ChatPrompt(messages=({"role": "user", "content": "x " * 4096},))):
        with pytest.raises(ContextLengthError, match=str(MAX_MODEL_LEN)):
            await answer(case, work(prompt))
    assert case.engine.info.max_model_len == MAX_MODEL_LEN
    assert text(await answer(case, work()))


async def test_sixteen_at_once_equal_each_alone(case: Case) -> None:
    prompts = [f"{TEXT} {number}" for number in range(4)]
    alone = {prompt: text(await answer(case, work(prompt))) for prompt in prompts}
    together = await asyncio.gather(*(answer(case, work(prompts[number % 4])) for number in range(16)))
    for number, deltas in enumerate(together):
        assert text(deltas) == alone[prompts[number % 4]]


async def test_health_and_tokenize(case: Case) -> None:
    health = await case.engine.health()
    assert (health.live, health.ready) == (True, True)
    assert case.engine.capabilities.tokenize
    result = await case.engine.tokenize(TEXT)  # type: ignore[attr-defined]
    assert result.token_ids
    assert await case.engine.detokenize(result.token_ids) == TEXT  # type: ignore[attr-defined]


async def test_unknown_model_at_the_door(case: Case) -> None:
    async with served(case.engine) as url, aiohttp.ClientSession() as session:
        body = {"model": "nobody", "prompt": "x"}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("remote", [False, True])
async def test_an_error_mid_stream_is_one_error(remote: bool) -> None:
    engine = FakeEngine(script=FakeScript(answers=["abcdef"], fail_after=3))
    if not remote:
        await _fails_after(engine, "abc")
        return
    async with served(engine) as url, over_http(url, "fake") as outer:
        await _fails_after(outer, "abc")


async def test_an_engine_that_dies_under_a_request() -> None:
    engine = FakeEngine(script=FakeScript(answers=["abcdef"], hang_after=3))
    async with served(engine) as url, over_http(url, "fake") as outer:
        generator = outer.generate(work())
        for expected in "abc":
            assert (await anext(generator)).text == expected
        dying = asyncio.create_task(_drop_connections(outer))
        with pytest.raises(ServiceError):
            await anext(generator)
        await dying


async def _fails_after(engine: Any, written: str) -> None:
    generator = engine.generate(work())
    for expected in written:
        assert (await anext(generator)).text == expected
    with pytest.raises(EngineError):
        await anext(generator)


async def _drop_connections(engine: Any) -> None:
    """As a dead server does: the sockets are gone."""
    await asyncio.sleep(0.05)
    for protocol in engine._upstream._session.connector._acquired:
        assert protocol.transport is not None
        protocol.transport.abort()
