"""When requests are sent: by a fixed number of clients that wait for their answers, or on a schedule that does not.

Knows neither HTTP nor prompts; it is given what to send, how to send one and a clock. A request that was due is sent
late rather than left out, and its timeline carries the time at which it was due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from llm_inference.tools.bench.api import Call
from llm_inference.tools.bench.timeline import Timeline

#: Sends one call that was due at the given second (None: now).
Send = Callable[[Call, float | None], Awaitable[Timeline]]
Clock = Callable[[], float]


async def closed_loop(
    send: Send,
    calls: Sequence[Call],
    concurrency: int,
    clock: Clock,
    *,
    duration_s: float | None = None,
    on_done: Callable[[Timeline], None] = lambda timeline: None,
) -> list[Timeline]:
    """`concurrency` clients, each of which sends the next call when its last one has ended.

    After `duration_s` no further call is sent; those in flight are waited for. In the order of `calls`.
    """
    pending = iter(calls)
    timelines: list[Timeline] = []

    async def client() -> None:
        for call in pending:
            if duration_s is not None and clock() >= duration_s:
                return
            timeline = await send(call, None)
            timelines.append(timeline)
            on_done(timeline)

    await _all(client() for _ in range(min(concurrency, len(calls))))
    return sorted(timelines, key=lambda timeline: timeline.index)


async def open_loop(
    send: Send,
    calls: Sequence[Call],
    arrivals_s: Sequence[float],
    clock: Clock,
    *,
    max_in_flight: int | None = None,
    on_done: Callable[[Timeline], None] = lambda timeline: None,
) -> list[Timeline]:
    """One call at each of `arrivals_s`, whatever has come back by then.

    With `max_in_flight` a call that finds no room waits at the client, in order, and that time is its `queue_s`.
    """
    room = asyncio.Semaphore(max_in_flight) if max_in_flight is not None else None

    async def client(call: Call, due_s: float) -> Timeline:
        async with AsyncExitStack() as stack:
            if room is not None:
                await stack.enter_async_context(room)
            timeline = await send(call, due_s)
        on_done(timeline)
        return timeline

    tasks: list[asyncio.Task[Timeline]] = []
    try:
        for call, due_s in zip(calls, arrivals_s, strict=True):
            await asyncio.sleep(max(due_s - clock(), 0))
            tasks.append(asyncio.create_task(client(call, due_s)))
        return list(await asyncio.gather(*tasks))
    finally:
        await _cancelled(tasks)


async def _all(clients: Iterable[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(client) for client in clients]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancelled(tasks)


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """An interrupt leaves nothing running."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
