"""What happens to limits while Redis is away: open, closed or local, as configured. Logged once, mended by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Literal, Protocol

from llm_inference.errors import NotReadyError
from llm_inference.gateway.tenants.limit_store import MemoryLimits, Use
from llm_inference.gateway.tenants.limits import Charge, State, Verdict

#: open: everything passes. closed: nothing passes, 503. local: every gateway counts for itself, the whole limit each.
FailMode = Literal["open", "closed", "local"]

_LOG = logging.getLogger("llm_inference.gateway.tenants")
#: After a failure requests do not wait for Redis for so long.
_PAUSE_S = 1.0


class SharedLimits(Protocol):
    """`RedisLimits`, or a stand-in: raises where it cannot answer."""

    async def reserve(self, charges: Sequence[Charge], lease: str) -> Verdict: ...

    async def settle(self, uses: Sequence[Use], lease: str) -> None: ...

    async def close(self) -> None: ...


class FailoverLimits:
    """A `LimitStore` over a shared one. `away` are the exceptions that mean that it cannot be reached."""

    def __init__(self, shared: SharedLimits, mode: FailMode, away: tuple[type[Exception], ...]) -> None:
        self._shared = shared
        self._mode = mode
        self._away = away
        self._local = MemoryLimits()
        self._retry_at = 0.0
        self._is_away = False
        #: Leases that the shared store granted; what was granted elsewhere is settled there.
        self._granted: set[str] = set()
        self._settling: set[asyncio.Task[None]] = set()

    async def reserve(self, charges: Sequence[Charge], lease: str) -> Verdict:
        if time.monotonic() >= self._retry_at:
            try:
                verdict = await self._shared.reserve(charges, lease)
            except self._away as error:
                self._fail(error)
            else:
                self._mend()
                if verdict.refused is None:
                    self._granted.add(lease)
                return verdict
        if self._mode == "closed":
            raise NotReadyError(
                "The store of the limits (api.limits_store) cannot be reached, and api.limits_fail is closed; "
                "retry later.",
                code="limits_unavailable",
                retry_after_s=_PAUSE_S,
            )
        if self._mode == "open":
            return Verdict(tuple(State(charge.limit, 0.0) for charge in charges))
        return self._local.decide(charges, lease)

    def settle(self, uses: Sequence[Use], lease: str) -> None:
        if lease not in self._granted:
            self._local.settle(uses, lease)
            return
        self._granted.discard(lease)
        # A task of its own: whoever settles may be cancelled at this very moment.
        task = asyncio.get_running_loop().create_task(self._settle_shared(uses, lease))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def close(self) -> None:
        if self._settling:
            await asyncio.wait(self._settling, timeout=2.0)
        await self._shared.close()

    async def _settle_shared(self, uses: Sequence[Use], lease: str) -> None:
        try:
            await self._shared.settle(uses, lease)
        except self._away as error:
            # Rates drain and leases expire by themselves; a budget keeps the reservation, which errs on the safe side.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + _PAUSE_S
        if not self._is_away:
            self._is_away = True
            _LOG.warning("the store of the limits is away (%s); until it is back: %s", error, _MEANING[self._mode])

    def _mend(self) -> None:
        if self._is_away:
            self._is_away = False
            _LOG.info("the store of the limits is back")


_MEANING: dict[FailMode, str] = {
    "open": "nothing is limited (api.limits_fail: open)",
    "closed": "requests with limits are refused with 503 (api.limits_fail: closed)",
    "local": "every gateway counts for itself (api.limits_fail: local)",
}
