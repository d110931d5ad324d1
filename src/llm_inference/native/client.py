"""The front's end of the wire: connects to a core, hands its messages to whoever waits for them.

One `CoreClient` per front process. A core that goes away ends every request in flight with one `EngineError`; a new
`connect` opens a fresh socket, so that nothing meant for a dead core reaches its successor. Torch-free.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from llm_inference.engine.base import EngineStats
from llm_inference.errors import (
    EngineError,
    LLMInferenceError,
    NotReadyError,
    RequestTimeoutError,
    StartupError,
    error_class,
)
from llm_inference.native.front_socket import FrontSocket
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.request import CoreRequest
from llm_inference.native.wire import (
    Abort,
    CoreReport,
    Failed,
    FromCore,
    FromFront,
    Hello,
    Profiled,
    ProfileSteps,
    PromptLogprobs,
    Ready,
    Rejected,
    Step,
    Submit,
)
from llm_inference.telemetry.profiling.figures import StepFigures

logger = logging.getLogger(__name__)

#: Outcomes that may wait for one client that reads slowly: whole answers fit, a stalled connection's memory is bounded.
MAX_BACKLOG = 32_768

#: What a request's queue holds: an outcome, or the error that ends it.
Item = SequenceOutput | PromptLogprobs | LLMInferenceError


class CoreClient:
    """Submits requests and routes what comes back. All methods belong to one event loop."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._socket: FrontSocket | None = None
        self._queues: dict[str, asyncio.Queue[Item]] = {}
        self._profiles: dict[str, asyncio.Future[Profiled]] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
        self._ready: asyncio.Future[CoreReport] | None = None
        self._stats = EngineStats()
        self._last_progress = self._last_heard = time.monotonic()
        self.on_lost: Callable[[str], None] = lambda reason: None

    @property
    def connected(self) -> bool:
        ready = self._ready
        return ready is not None and ready.done() and not ready.cancelled() and ready.exception() is None

    @property
    def num_in_flight(self) -> int:
        return len(self._queues)

    @property
    def stats(self) -> EngineStats:
        """The newest snapshot that the core sent."""
        return self._stats

    @property
    def stalled_s(self) -> float:
        """Seconds since a step completed while work was in flight; 0 when there is none."""
        return time.monotonic() - self._last_progress if self._queues else 0.0

    @property
    def silent_s(self) -> float:
        """Seconds since anything came from the core, which speaks every second; 0 when there is none."""
        return time.monotonic() - self._last_heard if self.connected else 0.0

    async def connect(self) -> CoreReport:
        """Open a fresh socket, greet, wait for the core to be ready. Raises the `StartupError` it refused with."""
        self.close()
        self._ready = asyncio.get_running_loop().create_future()
        # A closed connection is known at once, also to fronts that do not own the core's process.
        self._socket = FrontSocket(self._path, self._take, self._disconnected)
        self._send(Hello())
        return await asyncio.shield(self._ready)

    def close(self) -> None:
        """Drop the connection. Requests in flight end with `EngineError`."""
        self.lost("the connection to the engine was closed")
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def lost(self, reason: str) -> None:
        """The core is gone: end every request in flight with one error. Safe to call twice."""
        was_connected = self.connected
        if self._ready is not None:
            if not self._ready.done():
                self._ready.cancel()
            self._ready = None
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.put_nowait(EngineError(reason))
        for profile in self._profiles.values():
            if not profile.done():
                profile.set_exception(EngineError(reason))
        if was_connected:
            self.on_lost(reason)

    def submit(self, request: CoreRequest, queue: asyncio.Queue[Item] | None = None) -> asyncio.Queue[Item]:
        """Send a request; its outcomes arrive in the queue, a new one or one that several requests share.

        Raises `NotReadyError` when there is no core now.
        """
        if not self.connected or self._socket is None:
            raise NotReadyError("the engine is starting or restarting; try again shortly", retry_after_s=2)
        if not self._queues:
            self._last_progress = time.monotonic()
        if queue is None:
            queue = asyncio.Queue()
        self._queues[request.request_id] = queue
        self._send(Submit(request))
        return queue

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request (its queue is dropped), or one of its choices."""
        if index is None and self._queues.pop(request_id, None) is None:
            return
        if self.connected:
            self._send(Abort(request_id, index))

    def release(self, request_id: str) -> None:
        """The request has ended by itself; nothing more is expected of it."""
        self._queues.pop(request_id, None)

    async def profile(self, wanted: ProfileSteps, timeout_s: float) -> StepFigures:
        """What the core counted over the next steps; their trace is in the file then.

        Raises `NotReadyError` when there is no core now, `OverloadedError` while it makes another profile, and
        `EngineError` when it fails, goes away or does not answer within `timeout_s`.
        """
        if not self.connected:
            raise NotReadyError("the engine is starting or restarting; try again shortly", retry_after_s=2)
        answer: asyncio.Future[Profiled] = asyncio.get_running_loop().create_future()
        self._profiles[wanted.profile_id] = answer
        try:
            self._send(wanted)
            profiled = await asyncio.wait_for(answer, timeout_s)
        except asyncio.TimeoutError as exc:
            raise EngineError(f"the engine gave no profile within {timeout_s:.0f} s") from exc
        finally:
            del self._profiles[wanted.profile_id]
        if profiled.steps is None:
            raise _error(profiled.error, profiled.message, None)
        return profiled.steps

    def _send(self, message: FromFront) -> None:
        if self._socket is not None:
            self._socket.send(self._encoder.encode(message))

    def _take(self, payload: bytes) -> None:
        self._last_heard = time.monotonic()
        try:
            message = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:  # it speaks another language than this front
            logger.error("the engine's process sent what is no message: %s", error)
            self.lost("the engine's process sent what is no message")
            return
        if isinstance(message, Step):
            for request_id in self._on_step(message):
                self._send(Abort(request_id))
        elif isinstance(message, Ready):
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(message.report)
        elif isinstance(message, Rejected):
            if queue := self._queues.get(message.request_id):
                queue.put_nowait(_error(message.error, message.message, message.param))
        elif isinstance(message, Profiled):
            asked = self._profiles.get(message.profile_id)
            if asked is not None and not asked.done():
                asked.set_result(message)
        elif self._ready is not None and not self._ready.done():
            self._ready.set_exception(_startup_error(message))

    def _disconnected(self) -> None:
        if self.connected:
            self.lost("the engine's process ended while this request was running")

    def _on_step(self, step: Step) -> list[str]:
        """Hand out what a step brought. Returns the requests that were ended because nobody takes their outcomes."""
        if step.stats.num_steps != self._stats.num_steps:
            self._last_progress = time.monotonic()
        self._stats = step.stats
        # Prompt log-probabilities first: the same step may carry the first output of the request.
        for part in step.prompt_logprobs:
            if queue := self._queues.get(part.request_id):
                queue.put_nowait(part)
        given_up: list[str] = []
        for output in step.outputs:
            if queue := self._queues.get(output.request_id):
                if queue.qsize() < MAX_BACKLOG:
                    queue.put_nowait(output)
                    continue
                queue.put_nowait(
                    RequestTimeoutError(f"{MAX_BACKLOG} tokens of the answer were not taken; read it faster")
                )
                del self._queues[output.request_id]
                given_up.append(output.request_id)
        for failure in step.failures:
            if queue := self._queues.get(failure.request_id):
                queue.put_nowait(_error(failure.error, failure.message, failure.param))
        return given_up


def _error(name: str, message: str, param: str | None) -> LLMInferenceError:
    return error_class(name)(message, param=param)


def _startup_error(message: Failed) -> StartupError:
    error = _error(message.error, message.message, None)
    return error if isinstance(error, StartupError) else StartupError(message.message)
