"""The front's end of the wire to a library engine's worker: connects, submits, routes what comes back.

One `WorkerClient` per front process. A worker that goes away ends every request in flight with one `EngineError`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from llm_inference.adapters.library.wire import (
    Abort,
    Error,
    Failed,
    FromFront,
    FromWorker,
    Hello,
    Ready,
    Stats,
    Submit,
    Tokens,
    WorkerSampling,
)
from llm_inference.engine.base import EngineStats
from llm_inference.errors import (
    EngineError,
    LLMInferenceError,
    NotReadyError,
    RequestTimeoutError,
    StartupError,
    error_class,
)

logger = logging.getLogger(__name__)

#: Messages that may wait for one reader that is slow.
MAX_BACKLOG = 32_768
_MAX_LINE_BYTES = 64 * 2**20
_RETRY_S = 0.05

#: What a request's queue holds: news, or the error that ends it.
Item = Tokens | LLMInferenceError


class WorkerClient:
    """All methods belong to one event loop."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._writer: asyncio.StreamWriter | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._queues: dict[str, asyncio.Queue[Item]] = {}
        self._ready: asyncio.Future[Ready] | None = None
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
        self._stats = EngineStats()
        self._last_progress = self._last_heard = time.monotonic()
        self.on_lost: Callable[[str], None] = lambda reason: None

    @property
    def connected(self) -> bool:
        ready = self._ready
        return ready is not None and ready.done() and not ready.cancelled() and ready.exception() is None

    @property
    def stats(self) -> EngineStats:
        """The newest snapshot that the worker sent."""
        return self._stats

    @property
    def stalled_s(self) -> float:
        """Seconds since a step completed while work was in flight; 0 when there is none."""
        return time.monotonic() - self._last_progress if self._queues else 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since anything came from the worker, which speaks every second; 0 when there is none."""
        return time.monotonic() - self._last_heard if self.connected else 0.0

    async def connect(self) -> Ready:
        """Wait for the socket, greet, wait until the model is loaded. Raises the `StartupError` it was refused with.

        Waits for as long as there is no worker: whoever calls bounds it.
        """
        while True:
            await self.close()
            try:
                return await self._greet()
            except (FileNotFoundError, ConnectionError):
                await asyncio.sleep(_RETRY_S)

    async def _greet(self) -> Ready:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=_MAX_LINE_BYTES)
        self._writer = writer
        self._ready = asyncio.get_running_loop().create_future()
        self._receiver = asyncio.create_task(self._receive(reader), name="worker receive")
        self._send(Hello())
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        """Drop the connection. Requests in flight end with `EngineError`."""
        self.lost("the connection to the engine was closed")
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)

    def lost(self, reason: str) -> None:
        """The worker is gone: end every request in flight with one error. Safe to call twice."""
        was_connected = self.connected
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_exception(ConnectionResetError(reason))
            ready.exception()  # seen, whether or not somebody still waits for it
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.put_nowait(EngineError(reason))
        if was_connected:
            self.on_lost(reason)

    def submit(self, request_id: str, token_ids: tuple[int, ...], sampling: WorkerSampling) -> asyncio.Queue[Item]:
        """What comes of it arrives in the queue. Raises `NotReadyError` when there is no worker now."""
        if not self.connected:
            raise NotReadyError("the engine is starting or restarting; try again shortly", retry_after_s=2)
        if not self._queues:
            self._last_progress = time.monotonic()
        queue = self._queues[request_id] = asyncio.Queue()
        self._send(Submit(request_id, token_ids, sampling))
        return queue

    def abort(self, request_id: str) -> None:
        """End a request, unless it has ended."""
        if self._queues.pop(request_id, None) is not None and self.connected:
            self._send(Abort(request_id))

    def release(self, request_id: str) -> None:
        """The request has ended by itself; nothing more is expected of it."""
        self._queues.pop(request_id, None)

    def _send(self, message: FromFront) -> None:
        if self._writer is not None:
            self._writer.write(self._encoder.encode(message) + b"\n")

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._last_heard = time.monotonic()
                self._take(self._decoder.decode(line))
        except (ValueError, msgspec.MsgspecError) as error:  # it speaks another language than this front
            logger.error("the engine's process sent what is no message: %s", error)
        except ConnectionError:
            pass
        self.lost("the engine's process ended while this request was running; it is being restarted")

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Tokens):
            self._last_progress = time.monotonic()
            self._put(message.id, message)
        elif isinstance(message, Stats):
            if message.stats.num_steps != self._stats.num_steps:
                self._last_progress = time.monotonic()
            self._stats = message.stats
        elif isinstance(message, Error):
            self._put(message.id, _error(message.error, message.message, message.param))
        elif self._ready is not None and not self._ready.done():
            if isinstance(message, Ready):
                self._ready.set_result(message)
            else:
                self._ready.set_exception(_startup_error(message))

    def _put(self, request_id: str, item: Item) -> None:
        queue = self._queues.get(request_id)
        if queue is None:
            return
        if queue.qsize() >= MAX_BACKLOG:
            self.abort(request_id)
            item = RequestTimeoutError(f"{MAX_BACKLOG} tokens of the answer were not taken; read it faster")
        queue.put_nowait(item)


def _error(name: str, message: str, param: str | None) -> LLMInferenceError:
    return error_class(name)(message, param=param)


def _startup_error(message: Failed) -> StartupError:
    error = _error(message.error, message.message, None)
    return error if isinstance(error, StartupError) else StartupError(message.message)
