"""Who may come in now: a bound on requests in flight, and the closing of the door before shutdown.

A permit is held until the last byte is out, so that "in flight" means work, not handlers. One event loop, no locks.
It does not know keys, models or priorities yet; they will be arguments of `permit`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from llm_inference.errors import NotReadyError, OverloadedError

#: Seconds after which a refused caller should try again. Well under the 120 s at which clients give up.
RETRY_AFTER_S = 1.0
DRAIN_RETRY_AFTER_S = 5.0


class Admission:
    """Counts permits; refuses over the limit and while draining."""

    def __init__(self, max_concurrent_requests: int) -> None:
        self._limit = max_concurrent_requests
        self._in_flight = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def draining(self) -> bool:
        return self._draining

    def check(self) -> None:
        """Raise what `permit` would raise now: `NotReadyError` while draining, `OverloadedError` when full.

        Cheap; called before a body is read, so that a refused request costs nothing.
        """
        if self._draining:
            raise NotReadyError(
                "This server is shutting down and takes no new requests; send it to another replica or retry later.",
                code="shutting_down",
                retry_after_s=DRAIN_RETRY_AFTER_S,
            )
        if self._in_flight >= self._limit:
            raise OverloadedError(
                f"{self._in_flight} requests are in flight, which is the limit of this server "
                "(api.max_concurrent_requests); retry later.",
                retry_after_s=RETRY_AFTER_S,
            )

    @contextmanager
    def permit(self) -> Iterator[None]:
        """Hold one permit for the `with` block. Raises like `check`."""
        self.check()
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._idle.set()

    def begin_drain(self) -> None:
        """From now on refuse; what is in flight goes on. Cannot be undone."""
        self._draining = True

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight. False if `timeout_s` passed first."""
        if self._idle.is_set():
            return True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True
