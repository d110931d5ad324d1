from __future__ import annotations

import asyncio
import logging
import time

import pytest

from llm_inference.errors import NotReadyError
from llm_inference.gateway.tenants import failover
from llm_inference.gateway.tenants.failover import FailMode, FailoverLimits
from llm_inference.gateway.tenants.limit_store import Use
from llm_inference.gateway.tenants.limits import Limits
from llm_inference.gateway.tenants.redis_limits import AWAY, RedisLimits
from llm_inference.gateway.tenants.tenants import Tenants
from tests.gateway.serving import serving
from tests.gateway.tenants.charges import charges
from tests.gateway.tenants.services import redis_server

WANTED = charges(requests_per_minute=3)


async def granted(store: FailoverLimits, attempts: int) -> int:
    verdicts = [await store.reserve(WANTED, f"r{number}") for number in range(attempts)]
    return sum(verdict.refused is None for verdict in verdicts)


@pytest.mark.parametrize("mode", ["local", "open", "closed"])
async def test_redis_is_killed_and_comes_back(
    mode: FailMode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "_PAUSE_S", 0.2)
    caplog.set_level(logging.INFO, "llm_inference.gateway.tenants")
    with redis_server() as server:
        store = FailoverLimits(RedisLimits(server.url), mode, AWAY)
        assert await granted(store, 5) == 3
        server.kill()
        begun = time.monotonic()
        if mode == "closed":
            for _ in range(5):
                with pytest.raises(NotReadyError) as refusal:
                    await store.reserve(WANTED, "r")
                assert refusal.value.public_code == "limits_unavailable"
                assert refusal.value.retry_after_s
        else:
            # local: this gateway counts for itself, from nothing; open: everything passes.
            assert await granted(store, 20) == (3 if mode == "local" else 20)
        assert time.monotonic() - begun < 15, "requests must not wait for what is away"
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert f"api.limits_fail: {mode}" in warnings[0].getMessage()
        server.start()
        await asyncio.sleep(0.3)
        assert await granted(store, 5) == 3
        assert caplog.records[-1].getMessage() == "the store of the limits is back"
        await store.close()


async def test_two_gateways_over_one_redis_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP: one limit for both, and after the kill one for each, without a failed request."""
    monkeypatch.setattr(failover, "_PAUSE_S", 0.2)
    limits = Limits(tokens_per_day=200)
    with redis_server() as server:
        stores = [FailoverLimits(RedisLimits(server.url), "local", AWAY) for _ in range(2)]
        first, second = (Tenants(limits=store, address_limits=limits) for store in stores)
        async with serving(tenants=first) as left, serving(tenants=second) as right:

            async def granted() -> int:
                body = {"prompt": [104] * 5, "max_tokens": 5}
                calls = (one.post("/v1/completions", body) for one in (left, right) for _ in range(30))
                statuses = [reply.status for reply in await asyncio.gather(*calls)]
                assert set(statuses) <= {200, 429}
                return statuses.count(200)

            assert await granted() == 20, "ten tokens each, and all of them used"
            server.kill()
            assert await granted() == 40
            server.start()
            await asyncio.sleep(0.3)
            assert await granted() == 20, "a Redis without memory begins anew"
        for store in stores:
            await store.close()


async def test_what_was_granted_here_is_settled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease granted while Redis was away is none of Redis's, and the other way round."""
    monkeypatch.setattr(failover, "_PAUSE_S", 0.0)
    wanted = charges(max_concurrent_requests=1)
    with redis_server() as server:
        store = FailoverLimits(RedisLimits(server.url), "local", AWAY)
        assert (await store.reserve(wanted, "shared")).refused is None
        server.kill()
        assert (await store.reserve(wanted, "local")).refused is None
        assert (await store.reserve(wanted, "more")).refused == 0
        store.settle([Use(one, 1) for one in wanted], "local")
        assert (await store.reserve(wanted, "more")).refused is None
        store.settle([Use(one, 1) for one in wanted], "shared")  # fails in the background, and is no error
        await store.close()
