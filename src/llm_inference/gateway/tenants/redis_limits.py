"""Counters in Redis, for several gateways: every decision is one atomic script, on Redis's own clock.

Keys begin with `llm-inference:limit:`. Nothing needs cleaning up: whatever nobody touches expires. The leases of a
gateway that died are free after `LEASE_MS`; living ones renew theirs. One Redis, or one with replicas; not a cluster,
since a decision touches several keys at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from llm_inference.errors import ConfigError
from llm_inference.gateway.tenants.limit_store import Use, level_state, retry_after
from llm_inference.gateway.tenants.limits import RATE_PERIOD_MS, Charge, Verdict

#: What Redis being away looks like.
AWAY: tuple[type[Exception], ...] = (RedisError, OSError, asyncio.TimeoutError)
LEASE_MS = 60_000
_RENEW_S = 20.0
#: A Redis that takes longer than this for one script is as good as away; requests wait for it.
_TIMEOUT_S = 1.0
_MAX_CONNECTIONS = 128
#: For one of them to be free; longer, since what takes long then is ourselves.
_POOL_TIMEOUT_S = 2.0
_PREFIX = "llm-inference:limit:"

#: KEYS: one per charge. ARGV: lease, lease's life in ms, then kind, limit, amount, end of the window for each.
#: Answers {place of the refused charge or 0, now, level, level, …}; numbers as text, since Lua's may be large.
_RESERVE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local period, refused, levels = 60000, 0, {}
for i, key in ipairs(KEYS) do
  local at = 4 * i - 2
  local kind, limit, amount = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local level
  if kind == 'rate' then
    local kept = redis.call('HMGET', key, 'used', 'at')
    local used, last = tonumber(kept[1] or 0), tonumber(kept[2] or now)
    level = math.max(0, used - math.max(now - last, 0) * limit)
    amount, limit = amount * period, limit * period
  elseif kind == 'budget' then
    level = tonumber(redis.call('GET', key) or 0)
  else
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    level = redis.call('ZCARD', key)
  end
  levels[i] = level
  if refused == 0 and level + amount > limit then refused = i end
end
if refused == 0 then
  for i, key in ipairs(KEYS) do
    local at = 4 * i - 2
    local kind, amount = ARGV[at + 1], tonumber(ARGV[at + 3])
    if kind == 'rate' then
      levels[i] = levels[i] + amount * period
      redis.call('HSET', key, 'used', string.format('%.0f', levels[i]), 'at', string.format('%.0f', now))
      redis.call('PEXPIRE', key, math.ceil(levels[i] / tonumber(ARGV[at + 2])) + period)
    elseif kind == 'budget' then
      levels[i] = levels[i] + amount
      redis.call('INCRBY', key, string.format('%.0f', amount))
      -- A day longer than the window: requests that end after it still settle.
      redis.call('PEXPIREAT', key, string.format('%.0f', ARGV[at + 4] + 86400000))
    else
      levels[i] = levels[i] + 1
      redis.call('ZADD', key, now + ARGV[2], ARGV[1])
      redis.call('PEXPIRE', key, ARGV[2])
    end
  end
end
local answer = {refused, string.format('%.0f', now)}
for _, level in ipairs(levels) do table.insert(answer, string.format('%.0f', level)) end
return answer
"""

#: KEYS as above. ARGV: lease, then kind, limit, difference to what was reserved for each.
_SETTLE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for i, key in ipairs(KEYS) do
  local at = 3 * i - 2
  local kind, limit, more = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  if kind == 'lease' then
    redis.call('ZREM', key, ARGV[1])
  elseif more ~= 0 and kind == 'rate' then
    local kept = redis.call('HMGET', key, 'used', 'at')
    local used, last = tonumber(kept[1] or 0), tonumber(kept[2] or now)
    local level = math.max(0, used - math.max(now - last, 0) * limit)
    level = math.max(0, level + more * 60000)
    redis.call('HSET', key, 'used', string.format('%.0f', level), 'at', string.format('%.0f', now))
    redis.call('PEXPIRE', key, math.ceil(level / limit) + 60000)
  elseif more ~= 0 and redis.call('EXISTS', key) == 1 then
    if redis.call('INCRBY', key, string.format('%.0f', more)) < 0 then redis.call('SET', key, 0, 'KEEPTTL') end
  end
end
"""


class RedisLimits:
    """Raises one of `AWAY` out of every method that asks Redis; `failover.py` knows what then."""

    def __init__(self, url: str) -> None:
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=_MAX_CONNECTIONS,
                timeout=_POOL_TIMEOUT_S,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),  # a retry would count twice what was counted before the answer was lost
            )
        except ValueError as error:
            raise ConfigError(
                f"api.limits_store: {error}; write redis://host:port/number, rediss://… or unix://path"
            ) from error
        self._redis = redis.Redis(connection_pool=pool)
        self._reserve = self._redis.register_script(_RESERVE)
        self._settle = self._redis.register_script(_SETTLE)
        #: lease → (its keys), to be renewed.
        self._held: dict[str, tuple[str, ...]] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def reserve(self, charges: Sequence[Charge], lease: str) -> Verdict:
        args: list[Any] = [lease, LEASE_MS]
        for charge in charges:
            args += [charge.kind, charge.limit, charge.amount, charge.ends_ms]
        answer = await self._reserve(keys=[_PREFIX + charge.key for charge in charges], args=args)
        refused, now_ms, *levels = (int(number) for number in answer)
        states = tuple(level_state(charge, level, now_ms) for charge, level in zip(charges, levels, strict=True))
        if refused:
            charge = charges[refused - 1]
            return Verdict(states, refused - 1, retry_after(charge, levels[refused - 1], now_ms))
        leased = tuple(_PREFIX + charge.key for charge in charges if charge.kind == "lease")
        if leased:
            self._held[lease] = leased
            if self._renewing is None:
                self._renewing = asyncio.create_task(self._renew())
        return Verdict(states)

    async def settle(self, uses: Sequence[Use], lease: str) -> None:
        self._held.pop(lease, None)
        args: list[Any] = [lease]
        for use in uses:
            args += [use.charge.kind, use.charge.limit, use.actual - use.charge.amount]
        await self._settle(keys=[_PREFIX + use.charge.key for use in uses], args=args)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        with contextlib.suppress(*AWAY):
            await self._redis.aclose(close_connection_pool=True)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            with contextlib.suppress(*AWAY):
                seconds, _ = await self._redis.time()  # the scripts' clock, not ours
                until = (int(seconds) + 1) * 1000 + LEASE_MS
                pipeline = self._redis.pipeline(transaction=False)
                for lease, keys in self._held.items():
                    for key in keys:
                        pipeline.zadd(key, {lease: until}, xx=True)
                        pipeline.pexpire(key, LEASE_MS)
                await pipeline.execute()


assert RATE_PERIOD_MS == 60_000, "the scripts say it as a number"
