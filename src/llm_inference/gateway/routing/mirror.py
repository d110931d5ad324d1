"""Copies of requests for versions that are only tried out: their answers are thrown away.

Nobody waits for them, nothing of them is billed, and only so many run at once, each only for so long: over that, none
is made.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from llm_inference.engine.types import GenerateRequest
from llm_inference.errors import RequestTimeoutError
from llm_inference.gateway.routing.replica import Replica

_LOG = logging.getLogger("llm_inference.gateway.routing")

MAX_COPIES = 8
#: No client's deadline ends a copy, so a replica that hangs would keep its place for ever.
COPY_TIMEOUT_S = 600.0


class Mirror:
    """Of one shadow version: `share` of the requests are copied to its replicas."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        share: float,
        rng: random.Random,
        *,
        max_copies: int = MAX_COPIES,
        timeout_s: float = COPY_TIMEOUT_S,
    ) -> None:
        self.num_copied = 0
        self.num_dropped = 0
        self.num_failed = 0
        self._replicas = replicas
        self._share = share
        self._rng = rng
        self._max_copies = max_copies
        self._timeout_s = timeout_s
        self._copies: set[asyncio.Task[None]] = set()

    def offer(self, request: GenerateRequest) -> None:
        """Copy it, or not."""
        if self._rng.random() >= self._share:
            return
        replica = min(self._replicas, key=lambda one: one.outstanding_tokens)
        if len(self._copies) >= self._max_copies or not replica.available or replica.saturated:
            self.num_dropped += 1
            return
        self.num_copied += 1
        copy = msgspec.structs.replace(request, request_id=f"{request.request_id}-shadow", trace_context={})
        task = asyncio.get_running_loop().create_task(self._run(replica, copy))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    async def close(self) -> None:
        copies = list(self._copies)
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)

    async def _run(self, replica: Replica, request: GenerateRequest) -> None:
        try:
            with replica.working(0):
                await asyncio.wait_for(_answered(replica, request), self._timeout_s)
            replica.succeeded()
        except asyncio.TimeoutError:
            self.num_failed += 1
            late = RequestTimeoutError(f"it was not finished within {self._timeout_s:g} s")
            replica.failed(late)
            _LOG.info("a copy of a request failed on %s: %s", replica.id, late)
        except Exception as error:
            self.num_failed += 1
            replica.failed(error)
            _LOG.info("a copy of a request failed on %s: %s", replica.id, error)


async def _answered(replica: Replica, request: GenerateRequest) -> None:
    async with aclosing(replica.engine.generate(request)) as deltas:
        async for _ in deltas:
            pass
