"""One set of counters for several workers: the parent has them, workers ask over a private Unix socket.

A frame is a length (4 bytes) and msgpack. Questions carry a number, answers repeat it; settling has no answer. What a
worker holds when its connection ends (it was killed) is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from llm_inference.gateway.tenants.limit_store import MemoryLimits, Use
from llm_inference.gateway.tenants.limits import Charge, Verdict

#: What the parent being gone looks like.
AWAY: tuple[type[Exception], ...] = (OSError, EOFError, asyncio.TimeoutError)
_TIMEOUT_S = 0.5


class _Question(msgspec.Struct):
    """`number` 0: settle `uses`; else reserve `charges`."""

    number: int
    lease: str
    charges: tuple[Charge, ...] = ()
    uses: tuple[Use, ...] = ()


class _Answer(msgspec.Struct):
    number: int
    verdict: Verdict


class LimitServer:
    """The parent's side."""

    def __init__(self) -> None:
        self._limits = MemoryLimits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def limits(self) -> MemoryLimits:
        return self._limits

    async def start(self, path: Path) -> None:
        """Listen at `path`, in a directory that is this user's alone."""
        self._server = await asyncio.start_unix_server(self._serve, path)
        await asyncio.to_thread(path.chmod, 0o600)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._connections):
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        held: dict[str, list[Charge]] = {}
        try:
            while True:
                question = msgspec.msgpack.decode(await _read(reader), type=_Question)
                if question.number == 0:
                    # What was refused has taken nothing; who did not wait for the answer cannot know.
                    if held.pop(question.lease, None) is not None:
                        self._limits.settle(question.uses, question.lease)
                    continue
                verdict = self._limits.decide(question.charges, question.lease)
                if verdict.refused is None:
                    held[question.lease] = [charge for charge in question.charges if charge.kind == "lease"]
                _write(writer, _Answer(question.number, verdict))
        except AWAY:
            pass
        finally:
            self._connections.discard(writer)
            for lease, charges in held.items():
                self._limits.settle([Use(charge, 0) for charge in charges], lease)
            writer.close()


class SocketLimits:
    """A worker's side, under `FailoverLimits`. Raises one of `AWAY`; connects again by itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Verdict]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def reserve(self, charges: Sequence[Charge], lease: str) -> Verdict:
        writer = await self._connected()
        number = next(self._numbers)
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            _write(writer, _Question(number, lease, tuple(charges)))
            return await asyncio.wait_for(answer, _TIMEOUT_S)
        except BaseException:  # cancelled, or too late: it may have been granted all the same
            _write(writer, _Question(0, lease, uses=tuple(Use(charge, 0) for charge in charges)))
            raise
        finally:
            self._waiting.pop(number, None)

    async def settle(self, uses: Sequence[Use], lease: str) -> None:
        _write(await self._connected(), _Question(0, lease, uses=tuple(uses)))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is not None:
                return self._writer
            reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(self._path), _TIMEOUT_S)
            self._writer = writer
            self._reading = asyncio.create_task(self._read_answers(reader))
            return writer

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(*AWAY):
            while True:
                answer = msgspec.msgpack.decode(await _read(reader), type=_Answer)
                waiting = self._waiting.get(answer.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer.verdict)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the parent process is gone"))
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def _read(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def _write(writer: asyncio.StreamWriter, message: _Question | _Answer) -> None:
    payload = msgspec.msgpack.encode(message)
    writer.write(len(payload).to_bytes(4, "big") + payload)
