"""The door with a clock that stands still unless it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from llm_inference.errors import NotReadyError, OverloadedError, RequestTimeoutError
from llm_inference.gateway.admission.admission import MAX_RETRY_AFTER_S, Admission, Visitor
from llm_inference.gateway.admission.rules import AdmissionRules


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def start(work: Awaitable[None]) -> asyncio.Task[None]:
    async def run() -> None:
        await work

    return asyncio.create_task(run())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_permits_are_counted_and_given_back() -> None:
    admission = Admission(2)
    with admission.permit(), admission.permit():
        assert admission.in_flight == 2
        with pytest.raises(OverloadedError) as caught, admission.permit():
            pass
        assert caught.value.retry_after_s
        assert admission.in_flight == 2
    with pytest.raises(ZeroDivisionError), admission.permit():
        raise ZeroDivisionError
    assert admission.in_flight == 0
    admission.check()


async def test_without_a_queue_a_full_server_refuses_at_once() -> None:
    admission = Admission(1)
    assert admission.try_enter()
    assert not admission.try_enter()
    with pytest.raises(OverloadedError, match=r"api\.max_concurrent_requests") as caught:
        admission.check()
    assert caught.value.public_code == "overloaded"
    with pytest.raises(OverloadedError, match=r"api\.max_concurrent_requests"):
        await admission.wait(Visitor())
    admission.leave()
    assert admission.try_enter()


async def test_a_place_that_becomes_free_goes_to_who_waits() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=2))
    assert admission.try_enter()
    admission.check()
    first, second = (start(admission.wait(Visitor(f"k{number}"))) for number in range(2))
    await settle()
    assert admission.num_waiting == 2
    assert admission.filling == 1.0
    with pytest.raises(OverloadedError) as caught:
        admission.check("k2")
    assert caught.value.public_code == "queue_full"
    admission.leave()
    assert not admission.try_enter()  # nobody passes those who wait
    await settle()
    assert first.done()
    assert not second.done()
    assert admission.in_flight == 1
    admission.leave()
    await second
    admission.leave()
    assert admission.in_flight == admission.num_waiting == 0
    assert await admission.wait_idle(0)


async def test_who_leaves_the_queue_frees_its_room_and_takes_no_place() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=1, max_queue_tokens=50))
    assert admission.try_enter()
    gone = start(admission.wait(Visitor("a", tokens=50)))
    await settle()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert admission.num_waiting == 0
    stays = start(admission.wait(Visitor("a", tokens=50)))
    await settle()
    admission.leave()
    await stays
    admission.leave()
    assert await admission.wait_idle(0)


async def test_cancelled_in_the_moment_of_being_let_in() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=2))
    assert admission.try_enter()
    gone = start(admission.wait(Visitor("a")))
    stays = start(admission.wait(Visitor("b")))
    await settle()
    admission.leave()  # its turn is there, and it has not run yet
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await stays  # the place went on
    assert admission.in_flight == 1
    admission.leave()


async def test_cancelled_before_it_is_let_in() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=2))
    assert admission.try_enter()
    gone = start(admission.wait(Visitor("a")))
    await settle()
    gone.cancel()
    admission.leave()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert admission.in_flight == 0
    assert await admission.wait_idle(0)


async def test_tokens_bound_the_queue_but_never_shut_out_one_alone() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=10, max_queue_tokens=100))
    assert admission.try_enter()
    large = start(admission.wait(Visitor("a", tokens=1000)))
    await settle()
    assert admission.filling == 1.0
    with pytest.raises(OverloadedError, match="1000 tokens wait"):
        await admission.wait(Visitor("b", tokens=1))
    admission.leave()
    await large


async def test_a_full_queue_makes_room_for_a_key_that_has_less() -> None:
    """One key cannot fill the queue: its last request gives way."""
    admission = Admission(1, AdmissionRules(max_queue_requests=4))
    assert admission.try_enter()
    many = [start(admission.wait(Visitor("flood"))) for _ in range(4)]
    await settle()
    with pytest.raises(OverloadedError):
        await admission.wait(Visitor("flood"))
    admission.check("other")
    other = start(admission.wait(Visitor("other")))
    await settle()
    with pytest.raises(OverloadedError, match="this key has more") as caught:
        await many[3]
    assert caught.value.public_code == "queue_full"
    second = start(admission.wait(Visitor("other")))
    await settle()
    with pytest.raises(OverloadedError):
        await many[2]
    with pytest.raises(OverloadedError):  # two and two: that is fair
        await admission.wait(Visitor("other"))
    order = {many[0]: "flood", many[1]: "flood", other: "other", second: "other"}
    seen = []
    for _ in range(4):
        admission.leave()
        await settle()
        seen.append(next(order.pop(task) for task in list(order) if task.done()))
    assert seen == ["flood", "other", "flood", "other"]


async def test_nobody_gives_way_to_one_that_does_not_fit_all_the_same() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=10, max_queue_tokens=50))
    assert admission.try_enter()
    waiting = [start(admission.wait(Visitor("many", tokens=10))) for _ in range(5)]
    await settle()
    with pytest.raises(OverloadedError) as caught:
        await admission.wait(Visitor("large", tokens=45))
    assert caught.value.public_code == "queue_full"
    await settle()
    assert admission.num_waiting == 5
    small = start(admission.wait(Visitor("small", tokens=10)))
    await settle()
    assert admission.num_waiting == 5
    assert [task.done() for task in waiting] == [False, False, False, False, True]
    for task in (*waiting, small):
        task.cancel()
    await asyncio.gather(*waiting, small, return_exceptions=True)
    admission.leave()


async def test_waiting_too_long_and_past_the_deadline() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=3, max_wait_s=0.02))
    assert admission.try_enter()
    with pytest.raises(OverloadedError, match=r"admission\.max_wait_s") as caught:
        await admission.wait(Visitor("a"))
    assert caught.value.public_code == "queue_timeout"
    assert caught.value.retry_after_s
    clock = Clock()
    patient = Admission(1, AdmissionRules(max_queue_requests=3, max_wait_s=60), clock=clock)
    assert patient.try_enter()
    with pytest.raises(RequestTimeoutError, match="nothing was computed"):
        await patient.wait(Visitor("a", deadline=clock.now + 0.01))
    assert admission.num_waiting == patient.num_waiting == 0


async def test_who_could_not_be_in_time_is_refused_at_once() -> None:
    """By the observed rate of departures; no real time passes here."""
    clock = Clock()
    admission = Admission(4, AdmissionRules(max_queue_requests=100, max_wait_s=10), clock=clock)
    for _ in range(4):
        assert admission.try_enter()
    waiting = [start(admission.wait(Visitor(f"k{number % 7}"))) for number in range(40)]
    await settle()
    for _ in range(10):  # two a second
        clock.now += 0.5
        admission.leave()
        await settle()
    assert admission.num_waiting == 30
    with pytest.raises(OverloadedError, match="longer than the request may wait") as caught:
        await admission.wait(Visitor("new", priority=1, deadline=clock.now + 2))
    assert caught.value.public_code == "queue_timeout"
    assert caught.value.retry_after_s is not None
    # A key that has nothing waiting is let in after one each of the seven others: in (7 + 1) / 2 seconds.
    assert 2 < caught.value.retry_after_s <= 4
    urgent = start(admission.wait(Visitor("new", priority=-1, deadline=clock.now + 2)))
    await settle()
    assert not urgent.done()
    clock.now += 60  # nothing has moved for a minute: nothing is known any more but the silence
    with pytest.raises(OverloadedError) as caught:
        admission._refuse("queue")
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s <= MAX_RETRY_AFTER_S
    for task in [*waiting, urgent]:
        task.cancel()
    await asyncio.gather(*waiting, urgent, return_exceptions=True)


async def test_rare_departures_of_an_idle_server_say_nothing() -> None:
    clock = Clock()
    admission = Admission(2, AdmissionRules(max_queue_requests=10, max_wait_s=5), clock=clock)
    for _ in range(20):  # one request each ten seconds, at half of what it can
        assert admission.try_enter()
        clock.now += 10
        admission.leave()
    assert admission.try_enter()
    assert admission.try_enter()
    waits = start(admission.wait(Visitor("a")))
    await settle()
    assert not waits.done()
    admission.leave()
    await waits


async def test_a_busy_engine_lets_wait_while_there_are_places() -> None:
    busy = {"full": True}
    admission = Admission(
        8,
        AdmissionRules(max_queue_requests=8, max_kv_cache_usage=0.9),
        busy=lambda model: busy.get(model, False),
    )
    assert admission.try_enter("full")  # nothing runs there: it could not get better by waiting
    assert not admission.try_enter("full")
    waits = start(admission.wait(Visitor("a", model="full")))
    await settle()
    other = start(admission.wait(Visitor("a", model="free")))
    await settle()
    assert other.done()
    assert not waits.done()
    busy["full"] = False
    await asyncio.wait_for(waits, 30)  # found by looking again
    assert admission.in_flight == 3


async def test_a_full_model_locks_no_other_one_out() -> None:
    rules = AdmissionRules(max_queue_requests=1, max_kv_cache_usage=0.9)
    admission = Admission(3, rules, busy=lambda model: model == "full")
    assert admission.try_enter("full")  # nothing runs there yet
    waiting = start(admission.wait(Visitor("k", model="full")))
    await settle()
    assert admission.num_waiting == 1
    assert not admission.try_enter("idle")
    await admission.wait(Visitor("k", model="idle"))
    assert (admission.in_flight, admission.num_waiting) == (2, 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    admission.leave()
    admission.leave()
    assert (admission.in_flight, admission.num_waiting) == (0, 0)


async def test_a_busy_engine_refuses_where_there_is_no_queue() -> None:
    admission = Admission(8, AdmissionRules(max_kv_cache_usage=0.9), busy=lambda model: True)
    assert admission.try_enter("full")
    assert not admission.try_enter("full")
    with pytest.raises(OverloadedError, match="engines are full"):
        await admission.wait(Visitor(model="full"))


async def test_drain_refuses_the_new_and_serves_who_waits() -> None:
    admission = Admission(1, AdmissionRules(max_queue_requests=5))
    assert await admission.wait_idle(0)
    assert admission.try_enter()
    waits = start(admission.wait(Visitor("a")))
    await settle()
    admission.begin_drain()
    assert admission.draining
    refusals: list[Callable[[], object]] = [admission.check, admission.try_enter]
    for refused in refusals:
        with pytest.raises(NotReadyError) as caught:
            refused()
        assert caught.value.public_code == "shutting_down"
    idle = start(_idle(admission))
    assert not await admission.wait_idle(0.01)
    admission.leave()
    await waits
    assert not idle.done()
    admission.leave()
    await idle


async def _idle(admission: Admission) -> None:
    assert await admission.wait_idle(5)
