from __future__ import annotations

import asyncio

import pytest

from llm_inference.engine.base import Embeds, Engine, ReportsOwnMetrics, ReportsStats, Tokenizes
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.held import Held, hold
from llm_inference.engine.types import Delta, EmbedRequest, GenerateRequest, SamplingParams
from llm_inference.errors import NotReadyError


def request(number: int = 0) -> GenerateRequest:
    return GenerateRequest(request_id=str(number), model="fake", prompt="hello", sampling=SamplingParams())


async def text_of(engine: Engine, number: int = 0) -> str:
    return "".join([delta.text async for delta in engine.generate(request(number))])


class Bare:
    """An engine without any optional power."""

    def __init__(self) -> None:
        fake = FakeEngine("bare")
        self.capabilities, self.info, self.health = fake.capabilities, fake.info, fake.health
        self.start, self.stop, self.generate = fake.start, fake.stop, fake.generate


class OnThisMachine(FakeEngine):
    pid = property(lambda self: 7)


def test_it_has_the_powers_of_its_engine_and_no_others() -> None:
    full, bare = hold(OnThisMachine("fake")), hold(Bare())
    for power in (Embeds, Tokenizes, ReportsStats):
        assert isinstance(full, power)
        assert not isinstance(bare, power)
    assert not isinstance(full, ReportsOwnMetrics)
    assert full.pid == 7  # type: ignore[attr-defined]  # what only this engine has is passed on


async def test_it_passes_everything_on_and_counts() -> None:
    engine = FakeEngine("fake", script=FakeScript(delay_s=0.01))
    held = hold(engine)
    assert (held.info, held.capabilities) == (engine.info, engine.capabilities)
    deltas = held.generate(request())
    first: Delta = await anext(deltas)
    assert first.text == "h"
    assert (held.in_flight, held.idle_s) == (1, 0.0)
    assert not held.shut_if_idle(0.0)
    await deltas.aclose()
    assert held.in_flight == 0
    assert len(engine.aborted) == 1
    assert isinstance(held, Tokenizes)
    assert (await held.tokenize("ab")).token_ids == (await engine.tokenize("ab")).token_ids
    assert await held.detokenize((104, 105)) == await engine.detokenize((104, 105))
    assert isinstance(held, Embeds)
    assert len((await held.embed(EmbedRequest(request_id="e", model="fake", inputs=("a",)))).vectors) == 1
    assert held.num_requests == 4
    assert (await held.health()).ready


async def test_many_requests_have_it_loaded_once() -> None:
    woken: list[int] = []

    async def wake() -> None:
        woken.append(1)
        held.mark("loading")
        await asyncio.sleep(0.05)
        held.open(FakeEngine("fake", script=FakeScript(answers=["new"])))

    held = hold(FakeEngine("fake"), state="unloaded", wake=wake)
    assert held.takes
    health = await held.health()
    assert (health.live, health.ready) == (True, True)
    assert "loaded when a request comes" in health.reason
    assert isinstance(held, ReportsStats)
    assert held.stats().num_running == 0
    assert set(await asyncio.gather(*(text_of(held, number) for number in range(20)))) == {"new"}
    assert woken == [1]


async def test_a_failed_load_is_told_to_all_and_tried_again() -> None:
    tries: list[int] = []

    async def wake() -> None:
        tries.append(1)
        await asyncio.sleep(0.02)
        if len(tries) == 1:
            raise NotReadyError("no such file", code="model_load_failed", retry_after_s=3.0)
        held.open(FakeEngine("fake"))

    held = hold(FakeEngine("fake"), state="unloaded", wake=wake)
    answers = await asyncio.gather(*(text_of(held) for _ in range(5)), return_exceptions=True)
    assert {str(answer) for answer in answers} == {"no such file"}
    assert len(tries) == 1
    assert await text_of(held) == "hello"


async def test_the_wait_is_bounded_and_the_load_outlives_who_waited() -> None:
    go = asyncio.Event()

    async def wake() -> None:
        await go.wait()
        held.open(FakeEngine("fake"))

    held = hold(FakeEngine("fake"), state="unloaded", wake=wake, max_wait_s=0.05)
    with pytest.raises(NotReadyError, match=r"loading\.max_wait_s") as refused:
        await text_of(held)
    assert refused.value.public_code == "model_loading"
    assert refused.value.retry_after_s is not None
    leaving = asyncio.create_task(text_of(held))
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    go.set()
    await asyncio.sleep(0.01)
    assert held.state == "loaded"
    assert await text_of(held) == "hello"


@pytest.mark.parametrize("state", ["draining", "unloaded"])
async def test_what_an_operator_took_away_is_refused(state: str) -> None:
    held = hold(FakeEngine("fake"))
    held.mark(state, "drained by an operator", barred=True)  # type: ignore[arg-type]
    assert not held.takes
    with pytest.raises(NotReadyError, match="drained by an operator"):
        await text_of(held)
    health = await held.health()
    assert (health.live, health.ready, health.reason) == (True, False, "drained by an operator")
    held.open(held.engine)
    assert await text_of(held) == "hello"


async def test_a_request_waits_for_a_restart() -> None:
    held = hold(FakeEngine("fake"))
    held.mark("loading")
    waiting = asyncio.create_task(text_of(held))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    held.open(FakeEngine("fake", script=FakeScript(answers=["after"])))
    assert await waiting == "after"


async def test_shut_only_when_nobody_uses_it() -> None:
    held: Held = hold(FakeEngine("fake", script=FakeScript(delay_s=0.01)))
    running = asyncio.create_task(text_of(held))
    await asyncio.sleep(0.01)
    assert not held.shut_if_idle(0.0)
    assert not await held.drained(0.0)
    await running
    assert await held.drained(0.0)
    assert not held.shut_if_idle(100.0)
    assert held.state == "loaded"
    assert held.shut_if_idle(0.0)
    assert held.state == "draining"


async def test_who_waited_has_it_before_it_is_taken_away_again() -> None:
    held: Held = hold(FakeEngine("fake"), state="unloaded", wake=asyncio.Event().wait)  # type: ignore[arg-type]
    waiting = asyncio.create_task(text_of(held))
    await asyncio.sleep(0.01)
    held.open(FakeEngine("fake"))
    assert not held.shut_if_idle(0.0)
    assert await waiting == "hello", "although whoever was asked for it has not answered"
    assert held.shut_if_idle(0.0)


async def test_the_wait_is_bounded_all_in_all() -> None:
    async def wake() -> None:
        await asyncio.sleep(0.02)  # it was loaded, and taken away before the request could run

    held = hold(FakeEngine("fake"), state="unloaded", wake=wake, max_wait_s=0.1)
    with pytest.raises(NotReadyError, match=r"loading\.max_wait_s"):
        await asyncio.wait_for(text_of(held), 30)
