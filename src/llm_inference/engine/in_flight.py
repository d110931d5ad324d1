"""How many requests an engine works on, and waiting until there are none: what a graceful `stop` needs.

with in_flight:                 one more, until the block is left, however that comes
    …
await in_flight.drained(30.0)
"""

from __future__ import annotations

import asyncio
import contextlib


class InFlight:
    """Belongs to one event loop; may be entered again while it is entered."""

    def __init__(self) -> None:
        self._num = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num(self) -> int:
        return self._num

    def __enter__(self) -> None:
        self._num += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._num -= 1
        if not self._num:
            self._idle.set()

    async def drained(self, within_s: float) -> bool:
        """Wait for what runs, at most so long. Whether nothing runs any more."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), within_s)
        return self._num == 0
