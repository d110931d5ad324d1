from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from llm_inference.gateway.bursts import bursts


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
    assert ["".join(found) async for found in bursts(script(text), 4)] == expected


@pytest.mark.parametrize("text", ["ab!", "ab.!", "!", ".!"])
async def test_an_error_comes_after_what_came_before_it(text: str) -> None:
    seen: list[str] = []

    async def read() -> None:
        async for found in bursts(script(text)):
            seen.extend(found)

    with pytest.raises(ZeroDivisionError):
        await read()
    assert "".join(seen) == text.strip(".!")


async def test_a_wait_that_is_cancelled_cleans_up() -> None:
    closed: list[str] = []

    async def read() -> None:
        async with aclosing(script("a" + "." * 100_000, closed)) as items:
            async for _ in bursts(items):
                pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["closed"]


@pytest.mark.parametrize("text", ["ab.c", "ab...", "a" * 500])
async def test_leaving_early_cleans_up(text: str) -> None:
    """Also while the next item is waited for: the items after the first burst are already begun then."""
    closed: list[str] = []
    async with aclosing(script(text, closed)) as items, aclosing(bursts(items)) as found:
        async for _ in found:
            await asyncio.sleep(0.003)
            break
    assert closed == ["closed"]


async def test_a_consumer_that_fails_or_is_cancelled_cleans_up() -> None:
    closed: list[str] = []

    async def read() -> None:
        async with aclosing(script("ab" + "." * 1000, closed)) as items, aclosing(bursts(items)) as found:
            async for _ in found:
                await asyncio.sleep(60)

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
    async for found in bursts(reading()):
        await asyncio.sleep(0.0005)  # the consumer waits for something else meanwhile
        seen += found
    await task
    assert seen == list(range(50))
