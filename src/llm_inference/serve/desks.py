"""The desks of all gateway processes: what is asked of each of them at once.

A process may end at any moment: what its desk would have answered is left out then, and its requests are gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.held import HeldState
from llm_inference.gateway.admin.fleet import WorkerReport
from llm_inference.serve.desk import Post
from llm_inference.serve.peer import PeerGoneError

T = TypeVar("T")


class DeskLike(Protocol):
    """`Desk`, or one in another process. Any of it may raise `PeerGoneError`."""

    async def prepare(self, config: ServerConfig, posts: Sequence[Post]) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def retire(self) -> None: ...
    async def attach(self, run_dir: str) -> None: ...
    async def mark(self, run_dir: str, state: HeldState, reason: str, barred: bool) -> None: ...
    async def shut_if_idle(self, run_dir: str, for_s: float) -> bool: ...
    async def drained(self, run_dir: str, within_s: float) -> bool: ...
    async def detach(self, run_dir: str) -> None: ...
    async def forget(self, run_dir: str) -> None: ...
    async def report(self) -> WorkerReport: ...


class Desks:
    """One event loop, no locks."""

    def __init__(self) -> None:
        self._desks: list[DeskLike] = []

    def __len__(self) -> int:
        return len(self._desks)

    def add(self, desk: DeskLike) -> None:
        self._desks.append(desk)

    def remove(self, desk: DeskLike) -> None:
        """It may be gone already."""
        with contextlib.suppress(ValueError):
            self._desks.remove(desk)

    async def each(self, work: Callable[[DeskLike], Awaitable[T]]) -> list[T]:
        """Of every desk that is still there. Raises the first failure, when all are done."""
        answers = await asyncio.gather(*map(work, self._desks), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, PeerGoneError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def reports(self) -> list[WorkerReport]:
        return await self.each(lambda desk: desk.report())
