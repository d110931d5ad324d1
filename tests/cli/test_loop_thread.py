from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from llm_inference.cli.loop_thread import LoopThread


class Numbers:
    def __init__(self, fail_at: int | None = None) -> None:
        self.closed = False
        self.tasks: set[object] = set()
        self._fail_at = fail_at

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(1000):
                if number == self._fail_at:
                    raise ValueError("broken")
                self.tasks.add(asyncio.current_task())
                await asyncio.sleep(0)
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed = True


def test_a_stream_comes_whole_and_from_one_task() -> None:
    numbers = Numbers()
    with LoopThread() as loop:
        assert list(loop.stream(numbers.stream())) == list(range(1000))
    assert numbers.closed
    assert len(numbers.tasks) == 1


def test_its_error_comes_after_its_items() -> None:
    seen: list[int] = []
    with LoopThread() as loop:
        items = loop.stream(Numbers(fail_at=2).stream())
        with pytest.raises(ValueError, match="broken"):
            seen.extend(items)
    assert seen == [0, 1]


def test_leaving_early_closes_the_source() -> None:
    numbers = Numbers()
    with LoopThread() as loop:
        items = loop.stream(numbers.stream())
        assert next(items) == 0
        items.close()
        assert numbers.closed


@asynccontextmanager
async def tracked(events: list[str], *, fails: bool = False) -> AsyncIterator[str]:
    if fails:
        raise ValueError("cannot enter")
    events.append(f"in {threading.current_thread().name}")
    try:
        yield "value"
    finally:
        await asyncio.sleep(0)
        events.append("out")


def test_a_context_is_entered_and_left_in_the_loops_thread() -> None:
    events: list[str] = []
    with LoopThread() as loop, loop.entered(tracked(events)) as value:
        assert value == "value"
        assert events == ["in event-loop"]
    assert events == ["in event-loop", "out"]


def test_a_context_is_left_when_the_body_fails() -> None:
    events: list[str] = []
    with pytest.raises(KeyboardInterrupt), LoopThread() as loop, loop.entered(tracked(events)):
        raise KeyboardInterrupt
    assert events[-1] == "out"


def test_a_context_that_cannot_be_entered_raises_here() -> None:
    with LoopThread() as loop, pytest.raises(ValueError, match="cannot enter"), loop.entered(tracked([], fails=True)):
        pytest.fail("was entered")
