"""Ends a block early when the client leaves or the time is up.

A watcher task and a timer cancel the block's own task, once; nothing is added to the cost of a token. The block's
`finally` clauses run undisturbed, then the reason is raised in place of the cancellation. The watcher begins a moment
late: most blocks that are so short end without the cost of a task.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from llm_inference.errors import RequestTimeoutError

#: From when on a client's leaving is noticed.
WATCH_AFTER_S = 0.02


class Interrupt:
    """`async with Interrupt(receive, timeout_s):` raises `ClientDisconnect` or `RequestTimeoutError` out of the block.

    The request's body must have been read: whatever `receive` gives besides a disconnect is dropped. `total_s` and
    `whose` are for the message: of what time `timeout_s` is the rest, and who has set it.
    """

    def __init__(
        self,
        receive: Receive,
        timeout_s: float | None,
        *,
        total_s: float | None = None,
        whose: str = "api.request_timeout_s",
    ) -> None:
        self._receive = receive
        self._timeout_s = timeout_s
        self._total_s = timeout_s if total_s is None else total_s
        self._whose = whose
        self._armed = False
        self._deadline: float | None = None
        self._reason: Exception | None = None
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Interrupt:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._armed = True
        self._deadline = None if self._timeout_s is None else loop.time() + self._timeout_s
        self._timer = loop.call_later(WATCH_AFTER_S, self._begin_watch)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._armed = False  # no cancellation can come from here on
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is None:
            return
        # From Python 3.11 on: tell timeouts and task groups outside that this cancellation was ours.
        uncancel = getattr(self._task, "uncancel", None)
        if isinstance(error, asyncio.CancelledError) and uncancel is not None:
            uncancel()
        raise self._reason from None

    def _begin_watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._watcher = loop.create_task(self._watch())
        self._timer = None if self._deadline is None else loop.call_at(self._deadline, self._expire)

    async def _watch(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._fire(ClientDisconnect())
                return

    def _expire(self) -> None:
        self._fire(
            RequestTimeoutError(
                f"The request was not finished within {self._total_s:g} s ({self._whose}) and was aborted; "
                "ask for fewer tokens, or stream."
            )
        )

    def _fire(self, reason: Exception) -> None:
        if self._armed and self._reason is None:
            self._reason = reason
            assert self._task is not None
            self._task.cancel()
