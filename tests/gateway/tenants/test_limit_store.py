"""The same questions to the counters in memory and to those in a real Redis; both must decide alike."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from llm_inference.gateway.tenants import limit_store
from llm_inference.gateway.tenants.limit_store import MemoryLimits, Use
from llm_inference.gateway.tenants.limits import Charge, Verdict
from tests.gateway.tenants.charges import charges


class Store:
    """Either of them, with a `settle` that has settled when it returns."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def reserve(self, wanted: Sequence[Charge], lease: str = "r") -> Verdict:
        verdict: Verdict = await self.inner.reserve(wanted, lease)
        return verdict

    async def settle(self, wanted: Sequence[Charge], actual: int, lease: str = "r") -> None:
        done = self.inner.settle([Use(charge, actual) for charge in wanted], lease)
        if done is not None:
            await done


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield Store(MemoryLimits())
        return
    from llm_inference.gateway.tenants.redis_limits import RedisLimits

    inner = RedisLimits(request.getfixturevalue("running_redis").url)
    await inner._redis.flushall()
    yield Store(inner)
    await inner.close()


async def test_a_burst_of_the_whole_limit_and_not_one_more(store: Store) -> None:
    wanted = charges(requests_per_minute=50)
    begun = time.monotonic()
    verdicts = [await store.reserve(wanted) for _ in range(60)]
    granted = sum(verdict.refused is None for verdict in verdicts)
    assert 50 <= granted <= 50 + (time.monotonic() - begun) * 50 / 60
    assert verdicts[0].states[0].remaining == 49
    refused = verdicts[-1]
    assert refused.refused == 0
    assert refused.retry_after_s is not None
    assert 0 < refused.retry_after_s <= 60 / 50
    assert refused.states[0].remaining == 0
    assert 58 < refused.states[0].reset_s <= 60


async def test_waiting_as_long_as_told_is_enough_and_no_less(store: Store) -> None:
    wanted = charges(requests_per_minute=300)
    while (verdict := await store.reserve(wanted)).refused is None:
        pass
    assert verdict.retry_after_s is not None
    assert verdict.retry_after_s <= 0.2
    await asyncio.sleep(verdict.retry_after_s + 0.002)
    assert (await store.reserve(wanted)).refused is None


async def test_what_was_not_used_comes_back_and_what_was_used_beyond_is_owed(store: Store) -> None:
    wanted = charges(600, tokens_per_minute=1000)
    assert (await store.reserve(wanted)).refused is None
    assert (await store.reserve(wanted)).refused == 0
    await store.settle(wanted, 100)
    verdict = await store.reserve(wanted)
    assert verdict.refused is None
    assert 300 <= verdict.states[0].remaining <= 310
    await store.settle(wanted, 1500)
    owing = await store.reserve(charges(1, tokens_per_minute=1000))
    assert owing.refused == 0
    assert owing.retry_after_s is not None
    assert 34 < owing.retry_after_s < 37  # 1,600 used, of 1,000 a minute: 601 must drain first


async def test_all_or_nothing(store: Store) -> None:
    wanted = charges(80, requests_per_minute=10, tokens_per_minute=100, max_concurrent_requests=5, tokens_per_day=1000)
    assert (await store.reserve(wanted, "a")).refused is None
    for _ in range(3):
        assert (await store.reserve(wanted, "b")).refused == 1
    few = charges(1, requests_per_minute=10, tokens_per_minute=100, max_concurrent_requests=5, tokens_per_day=1000)
    verdict = await store.reserve(few, "c")
    assert verdict.refused is None
    assert [state.remaining for state in verdict.states][2:] == [3, 919]
    assert verdict.states[0].remaining == 8


async def test_more_than_the_whole_limit_never_fits(store: Store) -> None:
    for name in ("tokens_per_minute", "tokens_per_day", "tokens_per_month"):
        verdict = await store.reserve(charges(101, **{name: 100}))
        assert (verdict.refused, verdict.retry_after_s) == (0, None)


async def test_budgets_are_sums_until_the_window_ends(store: Store) -> None:
    wanted = charges(40, tokens_per_day=100)
    assert (await store.reserve(wanted)).refused is None
    await store.settle(wanted, 30)
    assert (await store.reserve(wanted)).refused is None
    verdict = await store.reserve(wanted)
    assert verdict.refused == 0
    assert verdict.states[0].remaining == 30
    left = 86_400 - time.time() % 86_400
    assert verdict.retry_after_s == pytest.approx(left, abs=2)
    tomorrow = [msgspec.structs.replace(one, key=one.key + "tomorrow") for one in wanted]
    assert (await store.reserve(tomorrow)).refused is None


async def test_leases_are_held_until_settled_however_long(store: Store) -> None:
    wanted = charges(max_concurrent_requests=2)
    assert (await store.reserve(wanted, "a")).refused is None
    assert (await store.reserve(wanted, "b")).refused is None
    full = await store.reserve(wanted, "c")
    assert (full.refused, full.retry_after_s) == (0, 1.0)
    await store.settle(wanted, 1, "a")
    await store.settle(wanted, 1, "a")  # twice is once
    assert (await store.reserve(wanted, "c")).refused is None
    assert (await store.reserve(wanted, "d")).refused == 0


async def test_callers_have_counters_of_their_own(store: Store) -> None:
    assert (await store.reserve(charges(key="key:a", requests_per_minute=1))).refused is None
    assert (await store.reserve(charges(key="key:b", requests_per_minute=1))).refused is None
    assert (await store.reserve(charges(key="key:a", requests_per_minute=1))).refused == 0


async def test_large_numbers_are_exact(store: Store) -> None:
    limit = 10**10
    wanted = charges(limit - 3, tokens_per_minute=limit, tokens_per_month=10**15)
    verdict = await store.reserve(wanted)
    assert [state.remaining for state in verdict.states] == [3, 10**15 - limit + 3]


def test_decisions_are_those_of_exact_fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a bucket in rational numbers, over random times and amounts, refunds included."""
    chance = random.Random(6)
    now_ms = 1_700_000_000_000
    monkeypatch.setattr(limit_store, "_now_ms", lambda: now_ms)
    store = MemoryLimits()
    level, last = Fraction(0), now_ms
    granted = 0
    for _ in range(3000):
        now_ms += chance.choice((0, 0, 1, 7, 400, 9000))
        level, last = max(Fraction(0), level - Fraction((now_ms - last) * 97, 60_000)), now_ms
        amount = chance.randint(0, 40)
        wanted = charges(amount, tokens_per_minute=97)
        verdict = store.decide(wanted, "r")
        assert (verdict.refused is None) == (level + amount <= 97)
        if verdict.refused is not None:
            assert verdict.retry_after_s == pytest.approx(float((level + amount - 97) * 60 / 97))
            continue
        granted += 1
        level += amount
        assert verdict.states[0].remaining == int(97 - level)
        if chance.random() < 0.5:
            actual = chance.randint(0, 60)
            store.settle([Use(wanted[0], actual)], "r")
            level = max(Fraction(0), level + actual - amount)
    assert 100 < granted < 2900


def test_counters_that_stand_at_zero_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 0
    monkeypatch.setattr(limit_store, "_now_ms", lambda: now_ms)
    store = MemoryLimits()
    for number in range(3 * 4096):
        now_ms += 10
        store.decide(charges(key=f"address:{number}", requests_per_minute=60), "r")
    assert len(store) < 2 * 4096


async def test_a_clock_that_is_put_back_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a machine's start, when the right time comes from the network: a minute's worth is free after a minute."""
    now_ms = 10**12
    monkeypatch.setattr(limit_store, "_now_ms", lambda: now_ms)
    store, wanted = MemoryLimits(), charges(requests_per_minute=2)
    for _ in range(2):
        assert store.decide(wanted, "r").refused is None
    now_ms -= 86_400_000
    assert store.decide(wanted, "r").refused == 0
    now_ms += 30_000
    assert store.decide(wanted, "r").refused is None
