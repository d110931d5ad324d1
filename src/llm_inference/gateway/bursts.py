"""What an asynchronous generator has without waiting, taken together.

An engine's deltas often come in bursts: several events in one piece of data from a socket, one step's tokens of several
choices. Writing each by itself costs more than making it. Nothing is ever held back to wait for more.

    items      a b c . d . . e f          (. is a wait)
    bursts     [a b c] [d] [e f]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

ItemT = TypeVar("ItemT")

#: A generator that never waits is cut into pieces of so many items.
MAX_BURST = 128


async def bursts(items: AsyncGenerator[ItemT, None], limit: int = MAX_BURST) -> AsyncGenerator[list[ItemT], None]:
    """Lists of 1 to `limit` items, in their order. An error of `items` comes after what came before it.

    Closing it early ends a wait of `items` as a cancellation would; closing `items` is the caller's.
    """
    found: list[ItemT] = []
    while True:
        step = _Step(items)
        try:
            ended = step.begin()
        except StopAsyncIteration:
            break
        except BaseException:
            if found:
                yield found
            raise
        if not ended:
            if found:
                try:
                    yield found
                except BaseException:
                    with suppress(StopAsyncIteration, asyncio.CancelledError):
                        await step.cancelled()
                    raise
                found = []
            try:
                await step
            except StopAsyncIteration:
                return
        found.append(step.item)
        if len(found) >= limit:
            yield found
            found = []
    if found:
        yield found


class _Step(Generic[ItemT]):
    """One `__anext__` that is begun at once and awaited, if it has to wait, later. See PEP 380 for the delegation."""

    __slots__ = ("_steps", "_waits_for", "item")

    item: ItemT

    def __init__(self, items: AsyncGenerator[ItemT, None]) -> None:
        self._steps: Any = items.__anext__()
        self._waits_for: Any = None

    def begin(self) -> bool:
        """Whether the item is there. Raises what the generator raises, `StopAsyncIteration` at its end."""
        try:
            self._waits_for = self._steps.send(None)
        except StopIteration as stop:
            self.item = stop.value
            return True
        return False

    async def cancelled(self) -> None:
        """End the wait with `CancelledError`, and wait for what the generator does then."""
        try:
            self._waits_for = self._steps.throw(asyncio.CancelledError())
        except StopIteration:
            return
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            try:
                sent = yield self._waits_for
            except BaseException as error:
                go_on, argument = self._steps.throw, error
            else:
                go_on, argument = self._steps.send, sent
            try:
                self._waits_for = go_on(argument)
            except StopIteration as stop:
                self.item = stop.value
                return
