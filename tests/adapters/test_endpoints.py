from __future__ import annotations

from llm_inference.adapters.endpoints import EJECT_AFTER, EJECT_S, EndpointPool


def test_least_in_flight_first() -> None:
    pool = EndpointPool(["a", "b"])
    with pool.use(pool.pick()):
        assert pool.num_in_flight == 1
        assert pool.pick().url == "b"
        with pool.use(pool.endpoints[1]), pool.use(pool.endpoints[1]):
            assert pool.pick().url == "a"
    assert pool.num_in_flight == 0


def test_ejected_after_failures_in_a_row_half_open_then_back() -> None:
    now = [100.0]
    pool = EndpointPool(["a", "b"], clock=lambda: now[0])
    bad, good = pool.endpoints
    for _ in range(EJECT_AFTER - 1):
        assert pool.failed(bad, unreachable=False) == 0.0
    pool.succeeded(bad)
    for _ in range(EJECT_AFTER):
        pool.failed(bad, unreachable=False)
    with pool.use(good):
        assert pool.pick() is good, "busy, but the other is ejected"
        now[0] += EJECT_S
        with pool.use(pool.pick()):
            assert bad.num_in_flight == 1
            assert pool.pick() is good, "one request tries it, not several"
        pool.failed(bad, unreachable=False)
        now[0] += EJECT_S
        assert pool.pick() is good, "longer the second time"
        now[0] += EJECT_S
        assert pool.pick() is bad
        pool.succeeded(bad)
        assert pool.pick() is bad


def test_all_ejected_is_better_than_none() -> None:
    now = [1.0]
    pool = EndpointPool(["a", "b"], clock=lambda: now[0])
    assert pool.failed(pool.endpoints[1], unreachable=True) == EJECT_S
    now[0] += 1
    pool.failed(pool.endpoints[0], unreachable=True)
    assert pool.pick().url == "b"
    assert EndpointPool(["a"]).pick(without=None).url == "a"
