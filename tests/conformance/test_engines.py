"""One suite, every engine: what `engine/base.py` promises, asked of each engine itself in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.types import ChatPrompt, Delta
from llm_inference.errors import ContextLengthError, EngineError, ServiceError
from tests.conformance.client import CHAT, TEXT, answer, work
from tests.conformance.engines import MAX_MODEL_LEN, Case, over_http, served
from tests.relay import relayed

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="package")]


def text(deltas: Sequence[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def end(deltas: Sequence[Delta], index: int = 0) -> Delta:
    return [delta for delta in deltas if delta.index == index][-1]


def needs(case: Case, field: str) -> None:
    """Skip where the engine's own table refuses `field`; that it does is tested elsewhere."""
    if case.engine.capabilities.support(field) == "refused":
        pytest.skip(f"refused: {field}: {case.engine.capabilities.reasons.get(field, 'no reason given')}")


def endless(case: Case) -> dict[str, Any]:
    """What makes an answer go on to its limit, where the engine can be told to."""
    return {} if case.engine.capabilities.support("ignore_eos") == "refused" else {"ignore_eos": True}


def alternatives(case: Case) -> int:
    """How many further tokens' log-probabilities to ask for; some engines tell the chosen token's alone."""
    return 0 if case.engine.capabilities.support("top_logprobs") == "refused" else 2


async def test_chat(case: Case) -> None:
    deltas = await answer(case, work(CHAT, max_tokens=64))
    assert ("capital" if case.echoes else "Paris") in text(deltas) + text(deltas)[::-1]
    assert end(deltas).finish_reason == "stop"


async def test_completion_of_text_and_of_token_ids(case: Case) -> None:
    written = text(await answer(case, work()))
    assert written
    assert text(await answer(case, work(tuple(case.encode(TEXT))))) == written


async def test_max_tokens_and_usage(case: Case) -> None:
    for limit in (1, 5):
        deltas = await answer(case, work(max_tokens=limit, **endless(case)))
        usage = deltas[-1].usage
        assert usage is not None
        assert end(deltas).finish_reason == "length"
        assert usage.completion_tokens == limit
        assert usage.prompt_tokens == len(case.encode(TEXT))


async def test_no_max_tokens_goes_on_beyond_sixteen(case: Case) -> None:
    prompt = "a " * 30 if case.echoes else "Once upon a time"
    written, enough = "", 20 if case.echoes else 150  # characters; a token is some five of them
    async with aclosing(case.engine.generate(work(prompt, max_tokens=None))) as deltas:
        async for delta in deltas:
            written += delta.text
            if len(written) > enough:
                break
    assert len(written) > enough


async def test_stop_strings(case: Case) -> None:
    whole = text(await answer(case, work(max_tokens=16)))
    stop = whole[4:7]
    deltas = await answer(case, work(max_tokens=16, stop=(stop,)))
    assert text(deltas) == whole[: whole.index(stop)]
    assert end(deltas).finish_reason == "stop"
    kept = await answer(case, work(max_tokens=16, stop=(stop,), include_stop_str_in_output=True))
    assert text(kept) == whole[: whole.index(stop)] + stop


async def test_many_stop_strings(case: Case) -> None:
    """More than most servers take at once."""
    whole = text(await answer(case, work(max_tokens=16)))
    stops = (*(f"never said {number}" for number in range(8)), whole[4:7])
    deltas = await answer(case, work(max_tokens=16, stop=stops))
    assert text(deltas) == whole[: whole.index(whole[4:7])]


async def test_n(case: Case) -> None:
    needs(case, "n")
    several = await answer(case, work(n=3))
    alone = await answer(case, work())
    for index in range(3):
        if case.exact:
            assert text(several, index) == text(alone)
        assert text(several, index)
    assert several[-1].usage is not None
    assert alone[-1].usage is not None
    assert several[-1].usage.prompt_tokens == alone[-1].usage.prompt_tokens, "the prompt is counted once"
    assert several[-1].usage.completion_tokens >= 3


async def test_seed(case: Case) -> None:
    needs(case, "seed")
    sampling: dict[str, Any] = {"n": 3, "seed": 11, "temperature": 0.0 if case.echoes else 1.0}
    once, again = await answer(case, work(**sampling)), await answer(case, work(**sampling))
    texts = [text(once, index) for index in range(3)]
    assert texts == [text(again, index) for index in range(3)]
    assert all(texts)


async def test_temperature_makes_a_difference(case: Case) -> None:
    if case.echoes:
        pytest.skip("no model")
    prompt = "Once upon a time"
    texts = [text(await answer(case, work(prompt, max_tokens=12, temperature=1.5))) for _ in range(4)]
    assert len(set(texts)) > 1


async def test_logprobs(case: Case) -> None:
    needs(case, "logprobs")
    num_top = alternatives(case)
    for prompt in (TEXT, CHAT):
        deltas = await answer(case, work(prompt, logprobs=num_top, max_tokens=4))
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        assert deltas[-1].usage is not None
        assert len(entries) == deltas[-1].usage.completion_tokens
        for entry in entries:
            assert entry.logprob is not None
            assert entry.logprob <= 0
            assert len(entry.top) >= num_top
            if num_top:
                assert entry.top[0][2] == pytest.approx(max(top[2] for top in entry.top))


async def test_logprobs_are_the_models(case: Case, reference: dict[str, float]) -> None:
    """Against transformers in float32; an engine may compute in less."""
    if case.echoes:
        pytest.skip("no model")
    needs(case, "logprobs")
    deltas = await answer(case, work(logprobs=alternatives(case), max_tokens=1))
    [entry] = [entry for delta in deltas for entry in delta.logprobs or ()]
    (best, value), *_ = reference.items()
    assert entry.token == best
    assert entry.logprob == pytest.approx(value, abs=0.01 if case.exact else 0.3)
    found = {text: logprob for _, text, logprob, _ in entry.top}
    assert len(set(found) & set(reference)) >= alternatives(case)
    for text in set(found) & set(reference):
        assert found[text] == pytest.approx(reference[text], abs=0.01 if case.exact else 0.3)


async def test_cancellation_ends_the_work(case: Case) -> None:
    generator = case.engine.generate(work(TEXT * 5, max_tokens=300, **endless(case)))
    await anext(generator)
    await generator.aclose()
    deadline = asyncio.get_running_loop().time() + 10
    while case.num_running():
        assert asyncio.get_running_loop().time() < deadline, "the work goes on without a reader"
        await asyncio.sleep(0.02)
    assert text(await answer(case, work()))


async def test_a_prompt_over_the_context(case: Case) -> None:
    for prompt in ("word " * 4 * MAX_MODEL_LEN, ChatPrompt(messages=({"role": "user", "content": "x " * 4096},))):
        with pytest.raises(ContextLengthError, match=str(MAX_MODEL_LEN)):
            await answer(case, work(prompt))
    assert case.engine.info.max_model_len == MAX_MODEL_LEN
    assert text(await answer(case, work()))


async def test_sixteen_at_once(case: Case) -> None:
    prompts = [f"{TEXT} {number}" for number in range(4)]
    alone = {prompt: text(await answer(case, work(prompt))) for prompt in prompts}
    together = await asyncio.gather(*(answer(case, work(prompts[number % 4])) for number in range(16)))
    for number, deltas in enumerate(together):
        if case.exact:
            assert text(deltas) == alone[prompts[number % 4]]
        assert text(deltas)


async def test_health_and_tokenize(case: Case) -> None:
    health = await case.engine.health()
    assert (health.live, health.ready, health.progressing) == (True, True, True)
    if case.engine.capabilities.tokenize:
        result = await case.engine.tokenize(TEXT)  # type: ignore[attr-defined]
        assert list(result.token_ids) == case.encode(TEXT)
        assert await case.engine.detokenize(result.token_ids) == TEXT  # type: ignore[attr-defined]


@pytest.mark.parametrize("remote", [False, True])
async def test_an_error_mid_stream_is_one_error(remote: bool) -> None:
    engine = FakeEngine(script=FakeScript(answers=["abcdef"], fail_after=3))
    if not remote:
        await _fails_after(engine, "abc")
        return
    async with served(engine) as url, over_http(url, "fake") as outer:
        await _fails_after(outer, "abc")


async def test_an_engine_whose_connection_breaks_under_a_request() -> None:
    engine = FakeEngine(script=FakeScript(answers=["abcdef"], hang_after=3))
    async with served(engine) as url, relayed(url) as relay, over_http(relay.url, "fake") as outer:
        generator = outer.generate(work())
        for expected in "abc":
            assert (await anext(generator)).text == expected
        asyncio.get_running_loop().call_later(0.05, relay.cut)
        with pytest.raises(ServiceError):
            await asyncio.wait_for(anext(generator), 10)


async def _fails_after(engine: Any, written: str) -> None:
    generator = engine.generate(work())
    for expected in written:
        assert (await anext(generator)).text == expected
    with pytest.raises(EngineError):
        await anext(generator)
