"""The core as a process: one ZeroMQ ROUTER, one step loop, any number of fronts.

    python -m llm_inference.native.server SETUP_FILE

SETUP_FILE is the `CoreSetup` as JSON, written by the front into its private run directory. The loop never blocks on a
socket while there is work: messages are drained between steps, so an abort takes effect within one step.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from llm_inference.errors import EngineError, LLMInferenceError, OutOfMemoryError, StartupError
from llm_inference.native.core import Core, StepResult, check_healthy
from llm_inference.native.profile_turn import ProfileTurn
from llm_inference.native.setup import CoreSetup
from llm_inference.native.stage_clock import StageClock, process_age_s
from llm_inference.native.wire import (
    Abort,
    CoreReport,
    Failed,
    FromCore,
    FromFront,
    Hello,
    ProfileSteps,
    Ready,
    Rejected,
    Step,
    Submit,
)
from llm_inference.telemetry.logging import configure_logging

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


class CoreServer:
    """Serves one `Core` on `socket` until told to stop."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromFront] = msgspec.msgpack.Decoder(FromFront)
        self._fronts: set[bytes] = set()
        self._owner: dict[str, bytes] = {}  # request id → front
        self._stopping = False

    def stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """Leave the loop after the current step. Fits `signal.signal`."""
        self._stopping = True

    def refuse(self, error: StartupError, timeout_s: float = 2.0) -> bool:
        """Tell the first front that says hello why there is no core. False if none came within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0 and not self._stopping:
            if self._socket.poll(int(left * 1000)):
                front, message = self._receive()
                if isinstance(message, Hello):
                    self._send(front, Failed(type(error).__name__, error.message))
                    return True
        return False

    def run(self, core: Core, report: CoreReport) -> None:
        """The loop. Raises `EngineError` when steps keep failing: the process is then better restarted."""
        ready = Ready(report)
        turn = ProfileTurn(core, report.runner)
        last_heartbeat = 0.0
        num_failed_steps = 0
        while not self._stopping:
            wait_ms = 0 if core.has_work else int(HEARTBEAT_S * 1000)
            while self._socket.poll(wait_ms) and not self._stopping:
                front, message = self._receive()
                if isinstance(message, ProfileSteps):
                    refusal = turn.begin(front, message)
                    if refusal is not None:
                        self._send(front, refusal, core)
                else:
                    with turn.stages("messages"):
                        self._handle(core, ready, front, message)
                wait_ms = 0
            if core.has_work:
                result = core.step()
                with turn.stages("messages"):
                    self._publish(core, result)
                turn.after_step()
                num_failed_steps = check_healthy(result, num_failed_steps)
                if not result.outputs and not result.failures and not result.prompt_logprobs:
                    time.sleep(0)  # a step of prefill alone, or nothing schedulable yet
            if ended := turn.ended():
                self._send(*ended, core)
            now = time.monotonic()
            if now - last_heartbeat >= HEARTBEAT_S:
                last_heartbeat = now
                heartbeat = Step(core.stats())
                for front in list(self._fronts):
                    self._send(front, heartbeat, core)

    def _receive(self) -> tuple[bytes, FromFront | None]:
        front, payload = self._socket.recv_multipart()
        try:
            return front, self._decoder.decode(payload)
        except msgspec.MsgspecError as exc:
            logger.error("dropped a message that does not decode: %s", exc)
            return front, None

    def _handle(self, core: Core, ready: Ready, front: bytes, message: FromFront | None) -> None:
        if isinstance(message, Hello):
            self._fronts.add(front)
            self._send(front, ready)
        elif isinstance(message, Submit):
            request_id = message.request.request_id
            try:
                core.add(message.request)
            except LLMInferenceError as exc:
                self._send(front, Rejected(request_id, type(exc).__name__, exc.message, exc.param), core)
            except Exception as exc:  # whatever one request runs into, the others go on
                logger.exception("request %s could not be added", request_id)
                core.abort(request_id)
                self._send(front, Rejected(request_id, EngineError.__name__, f"the engine failed: {exc}"), core)
            else:
                self._owner[request_id] = front
        elif isinstance(message, Abort) and self._owner.get(message.request_id) == front:
            core.abort(message.request_id, message.index)
            if message.index is None:
                self._owner.pop(message.request_id, None)

    def _publish(self, core: Core, result: StepResult) -> None:
        """Split a step's outcome by front and send each its part."""
        parts: dict[bytes, StepResult] = {}
        for output in result.outputs:
            if front := self._owner.get(output.request_id):
                parts.setdefault(front, StepResult()).outputs.append(output)
        for logprobs in result.prompt_logprobs:
            if front := self._owner.get(logprobs.request_id):
                parts.setdefault(front, StepResult()).prompt_logprobs.append(logprobs)
        for failure in result.failures:
            if front := self._owner.pop(failure.request_id, None):
                parts.setdefault(front, StepResult()).failures.append(failure)
        for request_id in {output.request_id for output in result.outputs if output.finish_reason}:
            if not core.is_live(request_id):
                self._owner.pop(request_id, None)
        if parts:
            stats = core.stats()
            for front, part in parts.items():
                step = Step(stats, tuple(part.outputs), tuple(part.prompt_logprobs), tuple(part.failures))
                self._send(front, step, core)

    def _send(self, front: bytes, message: FromCore, core: Core | None = None) -> None:
        try:
            self._socket.send_multipart([front, self._encoder.encode(message)])
        except zmq.ZMQError as exc:
            if exc.errno != zmq.EHOSTUNREACH:
                raise
            # The front is gone: nobody would read its answers, so its work ends here.
            self._fronts.discard(front)
            if core is not None:
                for request_id in [key for key, owner in self._owner.items() if owner == front]:
                    del self._owner[request_id]
                    core.abort(request_id)


def bind(context: zmq.Context[zmq.Socket[bytes]], path: str) -> zmq.Socket[bytes]:
    """A ROUTER on a Unix socket that only this user may open."""
    Path(path).unlink(missing_ok=True)
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    previous = os.umask(0o177)
    try:
        socket.bind(f"ipc://{path}")
    finally:
        os.umask(previous)
    return socket


def main() -> int:
    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=CoreSetup)
    configure_logging(setup.log_level, setup.log_format, sys.stderr)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = CoreServer(bind(context, setup.socket_path))
    signal.signal(signal.SIGTERM, server.stop)
    try:
        # Torch and the model are imported only now: the socket is there first, so that refusals reach the front.
        from llm_inference.native.build import build_core

        try:
            clock = StageClock(process_age_s())
            clock.end("imports")
            core, report = build_core(setup, clock)
        except (StartupError, MemoryError) as exc:
            error = exc if isinstance(exc, StartupError) else OutOfMemoryError("no memory left to load the model into")
            if not server.refuse(error):  # else the front says it, once
                print(f"error: {error.message}", file=sys.stderr)
            return StartupError.exit_code
        # Everything loaded lives as long as the process: keep the collector from walking it at every full pass.
        gc.collect()
        gc.freeze()
        server.run(core, report)
    except EngineError as exc:
        logger.critical("the core gives up: %s", exc.message)
        return 1
    finally:
        context.destroy(linger=500)
    return 0


if __name__ == "__main__":
    sys.exit(main())
