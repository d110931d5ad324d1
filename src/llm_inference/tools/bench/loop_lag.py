"""Whether the client itself is the bottleneck: how late its event loop wakes up, and how much CPU it took.

Every time measured here is read in that loop; if it is late by milliseconds, so is every latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_INTERVAL_S = 0.01


class LoopLag:
    """`lags_s`: by how much each wake-up was late. `cpu_share`: of one core, of this process, so far."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._started = time.perf_counter(), time.process_time()

    @property
    def cpu_share(self) -> float:
        wall, cpu = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        return cpu / wall if wall > 0 else 0.0

    async def watch(self) -> None:
        """Never ends by itself."""
        while True:
            due = time.perf_counter() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            self.lags_s.append(max(time.perf_counter() - due, 0.0))


@asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopLag]:
    lag = LoopLag()
    task = asyncio.create_task(lag.watch())
    try:
        yield lag
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
