from __future__ import annotations

import asyncio
import time

import pytest

from llm_inference.errors import ConfigError
from llm_inference.gateway.tenants import redis_limits
from llm_inference.gateway.tenants.redis_limits import RedisLimits
from tests.gateway.tenants.charges import charges
from tests.gateway.tenants.services import RedisServer


async def test_two_gateways_hold_one_limit_exactly(running_redis: RedisServer) -> None:
    gateways = [RedisLimits(running_redis.url) for _ in range(2)]
    await gateways[0]._redis.flushall()
    wanted = charges(
        10, requests_per_minute=60, tokens_per_minute=10_000, tokens_per_day=400, max_concurrent_requests=500
    )
    begun = time.monotonic()
    verdicts = await asyncio.gather(*(gateways[number % 2].reserve(wanted, f"lease-{number}") for number in range(200)))
    # The day's budget is the tightest, and it does not drain: to the token.
    assert sum(verdict.refused is None for verdict in verdicts) == 40
    rate = charges(key="key:k_2", requests_per_minute=60)
    verdicts = await asyncio.gather(*(gateways[number % 2].reserve(rate, "r") for number in range(200)))
    granted = sum(verdict.refused is None for verdict in verdicts)
    assert 60 <= granted <= 60 + (time.monotonic() - begun)
    for gateway in gateways:
        await gateway.close()


async def test_leases_of_a_gateway_that_died_are_free_again(
    running_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_limits, "LEASE_MS", 400)
    monkeypatch.setattr(redis_limits, "_RENEW_S", 0.1)
    dying, living = RedisLimits(running_redis.url), RedisLimits(running_redis.url)
    await dying._redis.flushall()
    wanted = charges(max_concurrent_requests=2)
    assert (await dying.reserve(wanted, "a")).refused is None
    assert (await living.reserve(wanted, "b")).refused is None
    await dying.close()  # no settling: as if it had been killed
    assert (await living.reserve(wanted, "c")).refused == 0
    await asyncio.sleep(0.6)
    assert (await living.reserve(wanted, "c")).refused is None
    # The living one's own lease was renewed meanwhile.
    assert (await living.reserve(wanted, "d")).refused == 0
    await living.close()


async def test_nothing_stays_for_ever(running_redis: RedisServer) -> None:
    store = RedisLimits(running_redis.url)
    await store._redis.flushall()
    await store.reserve(charges(5, requests_per_minute=6, tokens_per_day=50, max_concurrent_requests=2), "a")
    keys = await store._redis.keys("*")
    assert len(keys) == 3
    for key in keys:
        assert key.startswith(b"llm-inference:limit:key:k_1:")
        assert 0 < await store._redis.pttl(key) <= 2 * 86_400_000
    await store.close()


def test_a_wrong_url_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"api\.limits_store: .*redis://"):
        RedisLimits("http://127.0.0.1")
