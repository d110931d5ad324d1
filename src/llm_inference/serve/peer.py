"""Two processes that ask each other things over one private Unix connection: a parent and one of its workers.

A frame is a length (4 bytes) and msgpack. A question carries a number, its answer repeats it; an error travels with its
class, so that it is raised as what it was. Questions are answered side by side, not in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec

from llm_inference.errors import LLMInferenceError, error_class

logger = logging.getLogger(__name__)

_MAX_FRAME_BYTES = 64 * 2**20
T = TypeVar("T")

#: What is asked, and with what; gives what msgspec can encode, or raises.
Answering = Callable[[str, Any], Awaitable[Any]]


class PeerGoneError(ConnectionError):
    """The other process has ended, or ends."""


class _Error(msgspec.Struct):
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


class _Frame(msgspec.Struct, omit_defaults=True):
    kind: Literal["ask", "answer", "error"]
    number: int
    what: str = ""
    content: Any = None


class Peer:
    """One end of the connection. Nothing is heard until `run` runs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answering) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._gone = False

    async def run(self) -> None:
        """Until the connection ends; then every question that waits raises `PeerGoneError`."""
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                if size > _MAX_FRAME_BYTES:
                    return
                self._take(msgspec.msgpack.decode(await self._reader.readexactly(size), type=_Frame))
        except (OSError, EOFError, msgspec.MsgspecError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        self._gone = True
        self._writer.close()
        for task in self._answering:
            task.cancel()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(PeerGoneError("the other process has ended"))

    async def ask(self, what: str, content: object, kind: type[T]) -> T:
        """Raises what the other side raised, and `PeerGoneError`."""
        if self._gone:
            raise PeerGoneError("the other process has ended")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._write(_Frame("ask", number, what, content))
            return msgspec.convert(await answer, kind)
        finally:
            self._waiting.pop(number, None)

    # --- inside

    def _take(self, frame: _Frame) -> None:
        if frame.kind == "ask":
            task = asyncio.create_task(self._reply(frame))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        waiting = self._waiting.get(frame.number)
        if waiting is None or waiting.done():
            return  # whoever asked has given up
        if frame.kind == "answer":
            waiting.set_result(frame.content)
            return
        told = msgspec.convert(frame.content, _Error)
        waiting.set_exception(
            error_class(told.kind)(told.message, param=told.param, code=told.code, retry_after_s=told.retry_after_s)
        )

    async def _reply(self, frame: _Frame) -> None:
        try:
            reply = _Frame("answer", frame.number, content=await self._answer(frame.what, frame.content))
        except LLMInferenceError as error:
            told = _Error(type(error).__name__, error.message, error.param, error.public_code, error.retry_after_s)
            reply = _Frame("error", frame.number, content=told)
        except Exception as error:
            logger.exception("%s failed", frame.what)
            told = _Error("EngineError", f"{frame.what} failed: {type(error).__name__}")
            reply = _Frame("error", frame.number, content=told)
        if not self._gone:
            self._write(reply)

    def _write(self, frame: _Frame) -> None:
        payload = msgspec.msgpack.encode(frame)
        self._writer.write(len(payload).to_bytes(4, "big") + payload)
