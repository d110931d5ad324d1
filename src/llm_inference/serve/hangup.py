"""SIGHUP: read the configuration anew."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from llm_inference.errors import LLMInferenceError

logger = logging.getLogger(__name__)


@asynccontextmanager
async def reloading_on_hangup(reload: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """What comes of it is said in the log."""
    # On a terminal it means that the terminal is gone, and ends the server as it ends any program.
    if sys.stdin.isatty():
        yield
        return
    tasks: set[asyncio.Task[None]] = set()

    async def once() -> None:
        try:
            await reload()
        except LLMInferenceError as error:
            logger.error("the configuration was not taken, the old one goes on: %s", error.message)

    def on_hangup() -> None:
        tasks.add(task := asyncio.create_task(once()))
        task.add_done_callback(tasks.discard)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
