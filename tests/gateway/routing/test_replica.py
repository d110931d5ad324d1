from __future__ import annotations

import pytest

from llm_inference.engine.base import EngineStats
from llm_inference.engine.fake import FakeEngine
from llm_inference.errors import EngineError, InvalidRequestError, NotReadyError, OverloadedError
from llm_inference.gateway.routing.replica import Replica, header_value
from tests.gateway.routing.groups import Clock


class _Loaded(FakeEngine):
    running = 0

    def stats(self) -> EngineStats:
        return EngineStats(num_running=self.running)


def test_load_is_counted_and_given_back() -> None:
    replica = Replica("a", FakeEngine(max_batch_size=2))
    with replica.working(10):
        with replica.working(5):
            assert (replica.in_flight, replica.outstanding_tokens) == (2, 15)
            assert replica.saturated
        assert (replica.in_flight, replica.outstanding_tokens) == (1, 10)
        assert not replica.saturated
    assert (replica.in_flight, replica.outstanding_tokens, replica.num_requests) == (0, 0, 2)
    assert not replica.saturated
    assert replica.idle


def test_other_processes_load_counts_and_replays_do_not() -> None:
    engine = _Loaded(max_batch_size=2)
    replica = Replica("a", engine)
    engine.running = 2
    assert replica.saturated
    replica.num_background = 1
    assert not replica.saturated
    assert not replica.idle
    engine.running = 1
    assert replica.idle


def test_the_configured_limit_goes_before_the_engines() -> None:
    replica = Replica("a", FakeEngine(max_batch_size=8), max_in_flight=1)
    with replica.working(1):
        assert replica.saturated
    assert not Replica("a", FakeEngine(max_batch_size=None)).saturated


def test_a_replica_that_says_it_is_full_is_believed_for_a_while() -> None:
    clock = Clock()
    replica = Replica("a", FakeEngine(), clock=clock)
    replica.failed(OverloadedError("full", retry_after_s=3))
    assert replica.saturated
    assert replica.available
    clock.now += 3
    assert not replica.saturated
    replica.failed(OverloadedError("full", retry_after_s=3600))
    clock.now += 5
    assert not replica.saturated


def test_the_log_says_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    Replica("a", FakeEngine(), clock=Clock()).failed(
        NotReadyError("the engine 'x' is away", detail="at http://10.0.0.5")
    )
    assert caplog.messages == ["replica a is left alone for 2 s: the engine 'x' is away (at http://10.0.0.5)"]


def test_what_is_an_illness() -> None:
    replica = Replica("a", FakeEngine(), clock=Clock())
    for _ in range(5):
        replica.failed(InvalidRequestError("the caller's fault"))
    assert replica.available
    assert replica.num_failures == 0
    for _ in range(3):
        replica.failed(EngineError("died"))
    assert not replica.available
    other = Replica("b", FakeEngine(), clock=Clock())
    other.failed(NotReadyError("nobody listens"))
    assert not other.available


def test_ids_fit_into_headers() -> None:
    assert header_value("org/model@v2:int8#1") == b"org/model@v2:int8#1"
    assert header_value("größe\r\nx: y") == b"gr%C3%B6%C3%9Fe%0D%0Ax: y"
