from __future__ import annotations

import asyncio

import pytest

from llm_inference.engine.in_flight import InFlight


async def test_it_counts_whatever_ends_a_request() -> None:
    in_flight = InFlight()
    with in_flight:
        with in_flight:
            assert in_flight.num == 2
        assert in_flight.num == 1
    with pytest.raises(KeyError), in_flight:
        raise KeyError
    assert in_flight.num == 0
    assert await in_flight.drained(0)


async def test_it_waits_for_the_last_and_no_longer_than_it_may() -> None:
    in_flight, go = InFlight(), asyncio.Event()

    async def request() -> None:
        with in_flight:
            await go.wait()

    running = [asyncio.create_task(request()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await in_flight.drained(0)
    waiting = asyncio.create_task(in_flight.drained(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    assert await waiting
    await asyncio.gather(*running)
