"""An event loop in a thread of its own, so that the main thread may wait for the keyboard.

Ctrl-C then interrupts what the main thread waits for, be it a key or a token, and nothing hangs in `input()`. Each
stream and each context runs within one task, as async code expects.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Use as a context manager; leaving it stops the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event-loop", daemon=True)

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_asyncgens(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """`async with context`, from the main thread."""
        outcome: queue.SimpleQueue[T | _End] = queue.SimpleQueue()

        async def hold() -> None:
            async with context as value:
                outcome.put(value)
                await asyncio.Event().wait()

        cancel = self._spawn(hold(), outcome.put)
        end: _End | None = None
        try:
            value = outcome.get()
            if isinstance(value, _End):
                end = value
                raise end.error or EOFError
            yield value
        finally:
            if end is None:
                _drain(cancel, outcome)

    def stream(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of `source`. Closing the iterator, or Ctrl-C in it, closes `source` and waits until it is."""
        items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()

        async def pump() -> None:
            async with aclosing(source):
                async for item in source:
                    items.put(item)

        cancel = self._spawn(pump(), items.put)
        end: _End | None = None
        try:
            while end is None:
                item = items.get()
                if isinstance(item, _End):
                    end = item
                else:
                    yield item
        finally:
            if end is None:
                _drain(cancel, items)
        if end.error is not None:
            raise end.error

    def _spawn(self, coroutine: Coroutine[Any, Any, None], at_end: Callable[[_End], None]) -> Callable[[], object]:
        """Run it as a task; `at_end` is called once in every case. Returns a function that cancels it."""
        tasks: list[asyncio.Task[None]] = []  # one, from the loop's next turn on

        def start() -> None:
            task = self._loop.create_task(coroutine)
            task.add_done_callback(lambda done: at_end(_End(None if done.cancelled() else done.exception())))
            tasks.append(task)

        def cancel() -> None:
            tasks[0].cancel()

        self._loop.call_soon_threadsafe(start)
        # The loop calls in order: `start` has been called when `cancel` is.
        return partial(self._loop.call_soon_threadsafe, cancel)


class _End:
    """The last thing in a queue, with the error that ended its task."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _drain(cancel: Callable[[], object], items: queue.SimpleQueue[Any]) -> None:
    """Cancel a task and wait for its end; raise what its clean-up raised."""
    cancel()
    item = None
    while not isinstance(item, _End):
        item = items.get()
    if item.error is not None:
        raise item.error
