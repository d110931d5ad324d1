"""Several gateway processes, one /metrics: each reports to the parent, whoever is scraped asks the parent for the sum.

worker ── Report ──► parent      every few seconds, and when asked
worker ── Ask ─────► parent ── Please ──► the others ── Report ──► parent ── Answer ──► worker

Over a private Unix socket; a frame is a length (4 bytes) and msgpack. What a worker has counted stays in the sum after
its death, as of its last report: a counter that falls would look like a restart, and rates would jump.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from llm_inference.telemetry.metrics.snapshot import Snapshot, merged

logger = logging.getLogger(__name__)

_GONE: tuple[type[Exception], ...] = (OSError, EOFError, asyncio.TimeoutError, msgspec.MsgspecError)
REPORT_EVERY_S = 2.0
_OTHERS_S = 0.5
_PARENT_S = 1.0
_MAX_FRAME_BYTES = 64 * 2**20


class _Frame(msgspec.Struct, omit_defaults=True):
    kind: Literal["report", "ask", "please", "answer"]
    number: int = 0
    snapshot: Snapshot | None = None


class _Worker:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.last = Snapshot()
        self.reported = asyncio.Event()


class MetricsServer:
    """The parent's side. `own`: what the parent itself can say (its engines and processes)."""

    def __init__(self, own: Callable[[], Snapshot]) -> None:
        self._own = own
        self._server: asyncio.Server | None = None
        self._workers: set[_Worker] = set()
        self._past = Snapshot()
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        """Listen at `path`, in a directory that is this user's alone."""
        self._server = await asyncio.start_unix_server(self._serve, path)
        await asyncio.to_thread(path.chmod, 0o600)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._answering:
            task.cancel()
        for worker in tuple(self._workers):
            worker.writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = _Worker(writer)
        self._workers.add(worker)
        try:
            while True:
                frame = await _read(reader)
                if frame.snapshot is not None:
                    worker.last = frame.snapshot
                    worker.reported.set()
                if frame.kind == "ask":
                    task = asyncio.create_task(self._answer(worker, frame.number))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
        except _GONE:
            pass
        finally:
            self._workers.discard(worker)
            self._past = merged((self._past, worker.last.lasting()))
            writer.close()

    async def _answer(self, asker: _Worker, number: int) -> None:
        others = self._workers - {asker}
        for worker in others:
            worker.reported.clear()
            _write(worker.writer, _Frame("please"))
        waiting = [asyncio.create_task(worker.reported.wait()) for worker in others]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=_OTHERS_S)
            for task in late:  # its last report must do
                task.cancel()
        # Of an engine that all share the asker knows the newest; it comes first.
        living = [asker.last, *(worker.last for worker in self._workers - {asker})]
        whole = merged((*living, self._own(), self._past))
        whole.gauges["gateway_workers"] = [((), float(len(living)))]
        _write(asker.writer, _Frame("answer", number, whole))


class MetricsClient:
    """A worker's side. Connects again by itself; without the parent it shows its own figures."""

    def __init__(self, path: Path, own: Callable[[], Snapshot]) -> None:
        self._path = path
        self._own = own
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Snapshot]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """The last figures go out."""
        writer = self._writer
        if writer is not None:
            with contextlib.suppress(*_GONE):
                _write(writer, _Frame("report", snapshot=self._own().lasting()))
                await asyncio.wait_for(writer.drain(), _PARENT_S)
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def together(self, own: Snapshot) -> Snapshot:
        """The sum over all workers; `own` alone where the parent does not answer in time."""
        if self._writer is None:
            return own
        number = next(self._numbers)
        answer: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            _write(self._writer, _Frame("ask", number, own))
            return await asyncio.wait_for(answer, _PARENT_S)
        except _GONE as error:
            logger.warning("metrics are those of this worker alone: the parent does not answer (%r)", error)
            return own
        finally:
            self._waiting.pop(number, None)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(*_GONE):
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                reporting = asyncio.create_task(self._report(self._writer))
                try:
                    await self._listen(reader, self._writer)
                finally:
                    reporting.cancel()
                    self._writer.close()
                    self._writer = None
            await asyncio.sleep(REPORT_EVERY_S)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _read(reader)
            if frame.kind == "please":
                _write(writer, _Frame("report", snapshot=self._own()))
            waiting = self._waiting.get(frame.number)
            if frame.kind == "answer" and waiting is not None and not waiting.done() and frame.snapshot is not None:
                waiting.set_result(frame.snapshot)

    async def _report(self, writer: asyncio.StreamWriter) -> None:
        while True:
            _write(writer, _Frame("report", snapshot=self._own()))
            await asyncio.sleep(REPORT_EVERY_S)


async def _read(reader: asyncio.StreamReader) -> _Frame:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > _MAX_FRAME_BYTES:
        raise EOFError(f"a frame of {size} bytes")
    return msgspec.msgpack.decode(await reader.readexactly(size), type=_Frame)


def _write(writer: asyncio.StreamWriter, frame: _Frame) -> None:
    payload = msgspec.msgpack.encode(frame)
    writer.write(len(payload).to_bytes(4, "big") + payload)
