"""Several asynchronous generators as one, in the order in which their items come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")

#: Items of one generator that may wait for a slow reader.
_QUEUE_SIZE = 8


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """All items of all streams. The first error ends it. However it ends, every stream is closed before that."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield item
        return
    queue: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue(_QUEUE_SIZE * len(streams))
    pumps = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        running = len(pumps)
        while running:
            entry = await queue.get()
            if entry is None:
                running -= 1
            elif isinstance(entry, Exception):
                raise entry
            else:
                yield entry[0]
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(stream: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[T] | Exception | None]) -> None:
    end: Exception | None = None
    try:
        async with aclosing(stream) as items:
            async for item in items:
                await queue.put((item,))
    except Exception as error:
        end = error
    await queue.put(end)
