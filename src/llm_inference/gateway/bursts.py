"""What an asynchronous generator has without waiting, taken together.

An engine's deltas often come in bursts: several events in one piece of data from a socket, one step's tokens of several
choices. Writing each by itself costs more than making it. Nothing is ever held back to wait for more.

    items      a b c . d . . e f          (. is a wait)
    take       a b c   d     e f
    flush            |   |       |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")

#: A generator that never waits is cut into pieces of so many items.
MAX_BURST = 128


async def in_bursts(
    items: AsyncGenerator[ItemT, None],
    take: Callable[[ItemT], None],
    flush: Callable[[], Awaitable[None]],
    limit: int = MAX_BURST,
) -> None:
    """Give each item to `take`, and await `flush` after 1 to `limit` of them: before every wait, and at the end.

    What `items` or `take` raises is raised after a `flush` of what came before it. A cancellation during `flush` ends
    a wait of `items` that has begun as it would end any other; closing `items` is the caller's.
    """
    num_taken = 0
    while True:
        step: Any = items.__anext__()
        try:
            waits_for = step.send(None)
        except StopIteration as there:
            item = there.value
        except StopAsyncIteration:
            break
        except BaseException:
            if num_taken:
                await flush()
            raise
        else:
            waiting = _Waiting(step, waits_for)
            if num_taken:
                num_taken = 0
                try:
                    await flush()
                except BaseException:
                    with suppress(StopAsyncIteration, asyncio.CancelledError):
                        await waiting.cancelled()
                    raise
            try:
                item = await waiting
            except StopAsyncIteration:
                return
        try:
            take(item)
        except BaseException:
            if num_taken:
                await flush()
            raise
        num_taken += 1
        if num_taken >= limit:
            num_taken = 0
            await flush()
    if num_taken:
        await flush()


class _Waiting:
    """One `__anext__` that has begun and waits for `waits_for`; to be awaited later. See PEP 380 for the delegation."""

    __slots__ = ("_step", "_waits_for")

    def __init__(self, step: Any, waits_for: Any) -> None:
        self._step = step
        self._waits_for = waits_for

    async def cancelled(self) -> None:
        """End the wait with `CancelledError`, and wait for what the generator does then."""
        try:
            self._waits_for = self._step.throw(asyncio.CancelledError())
        except StopIteration:
            return
        await self

    def __await__(self) -> Generator[Any, Any, Any]:
        step = self._step
        while True:
            try:
                sent = yield self._waits_for
            except BaseException as error:
                go_on, argument = step.throw, error
            else:
                go_on, argument = step.send, sent
            try:
                self._waits_for = go_on(argument)
            except StopIteration as stop:
                return stop.value
