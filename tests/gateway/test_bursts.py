from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from llm_inference.gateway.bursts import MAX_BURST, in_bursts


async def script(text: str, closed: list[str] | None = None) -> AsyncGenerator[str, None]:
    """A letter is an item, a dot a wait, an exclamation mark an error."""
    try:
        for char in text:
            if char == ".":
                await asyncio.sleep(0.001)
            elif char == "!":
                raise ZeroDivisionError
            else:
                yield char
    finally:
        if closed is not None:
            await asyncio.sleep(0)  # a clean-up that waits
            closed.append("closed")


class Consumer:
    """Takes items and keeps each burst; every flush waits for `pause_s`, and the number `fails_at` fails."""

    def __init__(self, pause_s: float = 0.0, fails_at: int = -1) -> None:
        self.bursts: list[str] = []
        self._items: list[str] = []
        self._pause_s = pause_s
        self._fails_at = fails_at

    def take(self, item: str) -> None:
        if item == "x":
            raise KeyError(item)
        self._items.append(item)

    async def flush(self) -> None:
        self.bursts.append("".join(self._items))
        self._items.clear()
        await asyncio.sleep(self._pause_s)
        if len(self.bursts) - 1 == self._fails_at:
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (".", []),
        ("abc", ["abc"]),
        ("abc.d..ef", ["abc", "d", "ef"]),
        (".a", ["a"]),
        ("a.", ["a"]),
        ("abcdefg", ["abcd", "efg"]),
        ("abcd", ["abcd"]),
        ("ab.cdefgh.", ["ab", "cdef", "gh"]),
    ],
)
async def test_what_is_there_comes_together(text: str, expected: list[str]) -> None:
    consumer = Consumer()
    await in_bursts(script(text), consumer.take, consumer.flush, 4)
    assert consumer.bursts == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ab!", ZeroDivisionError),
        ("ab.!", ZeroDivisionError),
        ("!", ZeroDivisionError),
        (".!", ZeroDivisionError),
        ("abx", KeyError),
        ("ab.x", KeyError),
        ("x", KeyError),
        (".x", KeyError),
    ],
)
async def test_an_error_comes_after_what_came_before_it(text: str, error: type[Exception]) -> None:
    consumer = Consumer()
    async with aclosing(script(text)) as items:
        with pytest.raises(error):
            await in_bursts(items, consumer.take, consumer.flush)
    assert consumer.bursts == (["ab"] if "ab" in text else [])


async def test_a_wait_that_is_cancelled_cleans_up() -> None:
    closed: list[str] = []
    consumer = Consumer()

    async def read() -> None:
        async with aclosing(script("a" + "." * 100_000, closed)) as items:
            await in_bursts(items, consumer.take, consumer.flush)

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["closed"]
    assert consumer.bursts == ["a"]


@pytest.mark.parametrize("text", ["ab.c", "ab...", "a" * 2 * MAX_BURST])
async def test_a_flush_that_fails_cleans_up(text: str) -> None:
    """Also while the next item is waited for: what comes after the first burst has begun then."""
    closed: list[str] = []
    consumer = Consumer(pause_s=0.003, fails_at=0)
    async with aclosing(script(text, closed)) as items:
        with pytest.raises(ZeroDivisionError):
            await in_bursts(items, consumer.take, consumer.flush)
    assert closed == ["closed"]
    assert len(consumer.bursts) == 1


async def test_a_flush_that_is_cancelled_cleans_up() -> None:
    closed: list[str] = []
    consumer = Consumer(pause_s=60.0)

    async def read() -> None:
        async with aclosing(script("ab" + "." * 1000, closed)) as items:
            await in_bursts(items, consumer.take, consumer.flush)

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["closed"]


async def test_the_wait_is_the_generators_own() -> None:
    """Futures, queues and bare yields are waited for as if there were nothing between."""
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def reading() -> AsyncGenerator[int, None]:
        while (number := await queue.get()) >= 0:
            await asyncio.sleep(0)
            yield number

    async def writing() -> None:
        for number in [*range(50), -1]:
            await asyncio.sleep(0.0001 * (number % 3))
            queue.put_nowait(number)

    task = asyncio.create_task(writing())
    seen: list[int] = []

    async def flush() -> None:
        await asyncio.sleep(0.0005)  # the consumer waits for something else meanwhile

    await in_bursts(reading(), seen.append, flush)
    await task
    assert seen == list(range(50))
