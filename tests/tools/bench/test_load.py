from __future__ import annotations

import asyncio

import pytest

from llm_inference.tools.bench.api import Call
from llm_inference.tools.bench.load import closed_loop, open_loop
from llm_inference.tools.bench.statistics import peak_in_flight
from llm_inference.tools.bench.timeline import Timeline
from tests.tools.bench.timelines import timeline

CALLS = [Call(body=b"", index=index) for index in range(10)]


class FakeServer:
    """Answers after `service_s`; `clock` starts at zero."""

    def __init__(self, service_s: float = 0.02) -> None:
        self.service_s = service_s
        self.started = asyncio.get_running_loop().time()
        self.cancelled = 0

    def clock(self) -> float:
        return asyncio.get_running_loop().time() - self.started

    async def send(self, call: Call, scheduled_s: float | None) -> Timeline:
        sent = self.clock()
        try:
            await asyncio.sleep(self.service_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        now = self.clock()
        return timeline(
            (now, 1), sent_s=sent, scheduled_s=sent if scheduled_s is None else scheduled_s, index=call.index
        )


async def test_a_closed_loop_keeps_its_clients_busy() -> None:
    server = FakeServer()
    seen: list[Timeline] = []
    timelines = await closed_loop(server.send, CALLS, 3, server.clock, on_done=seen.append)
    assert [one.index for one in timelines] == list(range(10))
    assert peak_in_flight(timelines) == 3
    assert len(seen) == 10
    assert all(one.queue_s == 0 for one in timelines)


async def test_more_clients_than_calls_is_one_call_each() -> None:
    server = FakeServer()
    assert peak_in_flight(await closed_loop(server.send, CALLS[:2], 50, server.clock)) == 2
    assert await closed_loop(server.send, [], 5, server.clock) == []


async def test_after_the_duration_nothing_new_is_sent_and_nothing_is_cut_off() -> None:
    server = FakeServer(0.05)
    timelines = await closed_loop(server.send, CALLS, 1, server.clock, duration_s=0.12)
    assert [one.index for one in timelines] == list(range(len(timelines)))
    assert 1 <= len(timelines) < 10
    assert all(one.sent_s < 0.5 and one.ok for one in timelines)
    assert timelines[-1].ended_s >= 0.05


async def test_an_open_loop_sends_on_schedule_whatever_comes_back() -> None:
    server = FakeServer(1.0)
    due = [0.01 * number for number in range(10)]
    timelines = await open_loop(server.send, CALLS, due, server.clock)
    assert [one.scheduled_s for one in timelines] == due
    assert all(one.sent_s >= one.scheduled_s for one in timelines)
    # Nobody waited for an answer, which takes a second.
    assert max(one.queue_s for one in timelines) < 0.8
    assert peak_in_flight(timelines) == 10


async def test_waiting_for_room_is_counted_from_the_schedule() -> None:
    # One at a time, 50 ms each, all due at once: the k-th waits k · 50 ms at the client, and a report that counted
    # from sending alone would call each of them equally fast.
    server = FakeServer(0.05)
    timelines = await open_loop(server.send, CALLS[:5], [0.0] * 5, server.clock, max_in_flight=1)
    assert peak_in_flight(timelines) == 1
    for place, one in enumerate(timelines):
        assert one.queue_s >= 0.05 * place - 0.001
        assert one.e2el_scheduled_s >= 0.05 * (place + 1) - 0.001
        assert one.e2el_s < one.e2el_scheduled_s or place == 0


async def test_calls_and_schedule_must_match() -> None:
    server = FakeServer()
    with pytest.raises(ValueError, match="shorter"):
        await open_loop(server.send, CALLS, [0.0], server.clock)


@pytest.mark.parametrize("kind", ["closed", "open"])
async def test_an_interrupt_leaves_nothing_running(kind: str) -> None:
    server = FakeServer(30.0)
    if kind == "closed":
        task = asyncio.create_task(closed_loop(server.send, CALLS, 4, server.clock))
    else:
        task = asyncio.create_task(open_loop(server.send, CALLS, [0.0] * 10, server.clock))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.cancelled == (4 if kind == "closed" else 10)
    assert len(asyncio.all_tasks()) == 1
