from __future__ import annotations

from llm_inference.gateway.routing.breaker import Breaker, Ejection
from tests.gateway.routing.groups import Clock


def test_it_takes_so_many_failures_in_a_row() -> None:
    breaker = Breaker(Ejection(after=3), Clock())
    for _ in range(5):
        assert not breaker.failed()
        assert not breaker.failed()
        breaker.succeeded()
    assert breaker.available
    assert [breaker.failed() for _ in range(3)] == [False, False, True]
    assert breaker.ejected
    assert not breaker.available


def test_one_request_tries_it_when_its_time_is_over() -> None:
    clock = Clock()
    breaker = Breaker(Ejection(after=1, first_s=2), clock)
    assert not breaker.begin()  # healthy: nothing is a try
    breaker.failed()
    clock.now += 1.9
    assert not breaker.available
    clock.now += 0.2
    assert breaker.available
    probing = breaker.begin()
    assert probing
    assert not breaker.available  # one at a time
    assert not breaker.begin()
    breaker.end(probing=False)  # another request's end is not the try's
    assert not breaker.available
    breaker.succeeded()
    breaker.end(probing)
    assert breaker.available
    assert not breaker.ejected


def test_every_failed_try_doubles_the_wait_up_to_a_limit() -> None:
    clock = Clock()
    breaker = Breaker(Ejection(after=1, first_s=2, max_s=10), clock)
    waits = []
    for _ in range(5):
        probing = breaker.begin()
        assert breaker.failed()
        breaker.end(probing)
        waits.append(breaker.ejected_until - clock.now)
        clock.now = breaker.ejected_until
    assert waits == [2, 4, 8, 10, 10]
    breaker.succeeded()
    breaker.failed()
    assert breaker.ejected_until - clock.now == 2


def test_who_was_in_flight_at_the_ejection_does_not_lengthen_it() -> None:
    clock = Clock()
    breaker = Breaker(Ejection(after=1, first_s=2, max_s=60), clock)
    assert breaker.failed()
    for _ in range(8):
        assert not breaker.failed(at_once=True)
    assert (breaker.ejected_until - clock.now, breaker.num_ejections) == (2, 1)


def test_a_try_that_is_given_up_frees_the_place() -> None:
    clock = Clock()
    breaker = Breaker(Ejection(after=1), clock)
    breaker.failed(at_once=True)
    clock.now += 2
    breaker.end(breaker.begin())
    assert breaker.available


def test_what_is_not_there_is_left_alone_at_once() -> None:
    breaker = Breaker(Ejection(after=3), Clock())
    assert breaker.failed(at_once=True)
    assert breaker.num_ejections == 1
