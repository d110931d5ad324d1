"""Which models nobody uses: unloaded after their time, or as soon as another one needs their memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from llm_inference.gateway.admin.fleet import WorkerReport
from llm_inference.serve.kept import Kept

logger = logging.getLogger(__name__)

_TICK_S = 1.0


class IdleModels:
    """`kept`: the engines of this moment. `reports`: of every gateway process.

    `unload`: unless something runs there, or has within so many seconds; whether it did.
    """

    def __init__(
        self,
        kept: Callable[[], Mapping[str, Kept]],
        reports: Callable[[], Awaitable[Sequence[WorkerReport]]],
        unload: Callable[[Kept, float], Awaitable[bool]],
    ) -> None:
        self._kept = kept
        self._reports = reports
        self._unload = unload

    async def make_room(self) -> bool:
        """Unload the least recently used one that nobody uses. False: there is none now."""
        idle = await self._idle_s()
        for name in sorted(idle, key=lambda name: -idle[name]):
            one = self._kept().get(name)
            if one is not None and await self._unload(one, 0.0):
                return True
        return False

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            limits = self._limits()
            await asyncio.sleep(min(_TICK_S, min(limits.values(), default=_TICK_S) / 2))
            try:
                await self._unload_idle(limits)
            except Exception:
                logger.exception("looking for idle models failed")

    async def _unload_idle(self, limits: Mapping[str, float]) -> None:
        if not limits:
            return
        for name, seconds in (await self._idle_s()).items():
            one, limit = self._kept().get(name), limits.get(name)
            if one is not None and limit is not None and seconds >= limit:
                await self._unload(one, limit)

    def _limits(self) -> dict[str, float]:
        """Of those that are loaded."""
        return {
            name: one.entry.idle_unload_s
            for name, one in self._kept().items()
            if one.entry.idle_unload_s is not None and one.state == "loaded"
        }

    async def _idle_s(self) -> dict[str, float]:
        """Of the lazy ones that are loaded and run nothing: how long nobody has used them, in any process."""
        found: dict[str, float] = {}
        busy: set[str] = set()
        for report in await self._reports():
            for name, load in report.replicas.items():
                found[name] = min(found.get(name, load.idle_s), load.idle_s)
                if load.in_flight:
                    busy.add(name)
        lazy = {name for name, one in self._kept().items() if one.entry.lazy and one.state == "loaded"}
        return {name: seconds for name, seconds in found.items() if name in lazy - busy}
