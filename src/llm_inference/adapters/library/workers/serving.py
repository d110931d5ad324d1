"""The serving half of a library engine's process: a Unix socket, JSON lines, one loop. Standard library only.

    PYTHON serving.py WORKER_FILE SETUP_FILE

It runs under the engine's own interpreter, which knows nothing of this package, so it is started by path.
WORKER_FILE defines `open_worker(setup)`, which returns a `Worker`; SETUP_FILE is JSON and names the socket.

    front (any number)                          worker (one)
      hello ──────────────────────────────────►   (answered once the model is loaded)
      ◄──────────────────────────── ready | failed
      submit, abort ──────────────────────────►
      ◄── tokens, error, stats (after each step that concerns this front, and each second as a heartbeat)

Everything happens in one thread, messages between steps: an abort takes effect within one step, and a worker that
hangs stops its heartbeat. What a step means is the worker file's business.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

HEARTBEAT_S = 1.0
#: A front that leaves this much unread is taken for gone.
MAX_UNREAD_BYTES = 64 * 2**20
#: Steps that may fail one after the other before the process is better restarted.
MAX_FAILED_STEPS = 3

Message = dict[str, Any]


class Worker(Protocol):
    """What WORKER_FILE brings. Request ids are strings and never used twice."""

    def report(self) -> Message:
        """What loading came to."""

    def add(self, request_id: str, token_ids: list[int], sampling: Message) -> None:
        """Raises `ValueError(message, field)` for a request that cannot be done."""

    def abort(self, request_id: str) -> None:
        """Unknown ids are ignored."""

    def has_work(self) -> bool: ...

    def step(self) -> list[Message]:
        """News, each with `id`: `tokens` messages, or `error` ones. Raises whatever the library raises."""

    def stats(self) -> Message: ...


class Front:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.unsent = bytearray()

    def lines(self) -> list[bytes]:
        """The complete lines that have come."""
        *whole, rest = bytes(self.received).split(b"\n")
        self.received = bytearray(rest)
        return whole


class Server:
    """Serves one `Worker` on `listener` until told to stop."""

    def __init__(self, listener: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener
        self._fronts: dict[socket.socket, Front] = {}
        self._owner: dict[str, Front] = {}
        self._stopping = False

    def stop(self, signum: int = 0, frame: FrameType | None = None) -> None:
        self._stopping = True

    def refuse(self, error: str, message: str, timeout_s: float = 5.0) -> None:
        """Tell the fronts why there is no worker; returns after the first has read it."""
        deadline = time.monotonic() + timeout_s
        told = False
        while not self._stopping and not told and time.monotonic() < deadline:
            for front, line in self._receive(0.1):
                if line.get("type") == "hello":
                    self._send(front, {"type": "failed", "error": error, "message": message})
                    told = True

    def run(self, worker: Worker) -> None:
        """The loop. Raises `RuntimeError` when steps keep failing."""
        ready = {"type": "ready", "report": worker.report()}
        last_heartbeat = 0.0
        num_failed = 0
        while not self._stopping:
            for front, message in self._receive(0.0 if worker.has_work() else HEARTBEAT_S):
                self._handle(worker, ready, front, message)
            self._abort_orphans(worker)
            if worker.has_work():
                num_failed = self._step(worker, num_failed)
            now = time.monotonic()
            if now - last_heartbeat >= HEARTBEAT_S:
                last_heartbeat = now
                stats = {"type": "stats", "stats": worker.stats()}
                for front in list(self._fronts.values()):
                    self._send(front, stats)

    def _handle(self, worker: Worker, ready: Message, front: Front, message: Message) -> None:
        kind = message.get("type")
        if kind == "hello":
            self._send(front, ready)
        elif kind == "submit":
            request_id = message["id"]
            self._owner[request_id] = front
            try:
                worker.add(request_id, message["token_ids"], message["sampling"])
            except ValueError as error:
                field = error.args[1] if len(error.args) > 1 else None
                self._fail(request_id, str(error.args[0]), "InvalidRequestError", field)
            except Exception as error:  # whatever one request runs into, the others go on
                traceback.print_exc()
                worker.abort(request_id)
                self._fail(request_id, f"the engine failed: {error}")
        elif kind == "abort" and self._owner.get(message["id"]) is front:
            del self._owner[message["id"]]
            worker.abort(message["id"])

    def _step(self, worker: Worker, num_failed: int) -> int:
        """How many steps have failed in a row."""
        try:
            news = worker.step()
        except Exception as error:
            traceback.print_exc()
            if num_failed + 1 >= MAX_FAILED_STEPS:
                raise RuntimeError(f"{MAX_FAILED_STEPS} steps failed one after the other; last: {error}") from error
            for request_id in list(self._owner):
                worker.abort(request_id)
                self._fail(request_id, f"the engine failed: {_first_line(error)}")
            return num_failed + 1
        concerned: set[Front] = set()
        for message in news:
            front = self._owner.get(message["id"])
            if front is not None:
                concerned.add(front)
                self._send(front, message)
            if message.get("last"):
                self._owner.pop(message["id"], None)
        if concerned:
            stats = {"type": "stats", "stats": worker.stats()}
            for front in concerned:
                self._send(front, stats)
        return 0

    def _fail(self, request_id: str, message: str, error: str = "EngineError", param: str | None = None) -> None:
        front = self._owner.pop(request_id, None)
        if front is not None:
            self._send(front, {"type": "error", "id": request_id, "error": error, "message": message, "param": param})

    def _receive(self, timeout_s: float) -> list[tuple[Front, Message]]:
        """What has come, and what could not be sent before is sent on."""
        messages: list[tuple[Front, Message]] = []
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
                continue
            front: Front = key.data
            if events & selectors.EVENT_WRITE:
                self._flush(front)
            if not events & selectors.EVENT_READ or front.connection not in self._fronts:
                continue
            try:
                data = front.connection.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self._drop(front)
                continue
            front.received += data
            for line in front.lines():
                try:
                    messages.append((front, json.loads(line)))
                except ValueError as error:
                    print(f"dropped a message that is no JSON: {error}", file=sys.stderr, flush=True)
        return messages

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            front = self._fronts[connection] = Front(connection)
            self._selector.register(connection, selectors.EVENT_READ, front)

    def _send(self, front: Front, message: Message) -> None:
        if front.connection not in self._fronts:
            return
        front.unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(front.unsent) > MAX_UNREAD_BYTES:
            self._drop(front)
        else:
            self._flush(front)

    def _flush(self, front: Front) -> None:
        try:
            while front.unsent:
                del front.unsent[: front.connection.send(front.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(front)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if front.unsent else 0)
        if self._selector.get_key(front.connection).events != wanted:
            self._selector.modify(front.connection, wanted, front)

    def _drop(self, front: Front) -> None:
        if self._fronts.pop(front.connection, None) is not None:
            self._selector.unregister(front.connection)
            front.connection.close()

    def _abort_orphans(self, worker: Worker) -> None:
        """Nobody would read the answers of a front that is gone."""
        for request_id, front in list(self._owner.items()):
            if front.connection not in self._fronts:
                del self._owner[request_id]
                worker.abort(request_id)


def listen(path: str) -> socket.socket:
    """A Unix socket that only this user may open."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(previous)
    listener.listen(64)
    listener.setblocking(False)
    return listener


def _module(path: str) -> Any:
    """The module in a file, under its own name. Modules beside this file can be imported by it."""
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _first_line(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return " ".join(text.split())[:300]


def main() -> int:
    worker_file, setup_file = sys.argv[1:3]
    setup = json.loads(Path(setup_file).read_text(encoding="utf-8"))
    server = Server(listen(setup["socket_path"]))
    signal.signal(signal.SIGTERM, server.stop)
    try:
        worker: Worker = _module(worker_file).open_worker(setup)
    except ValueError as error:
        server.refuse("ConfigError", str(error))
        return 2
    except MemoryError:
        server.refuse("OutOfMemoryError", "no memory left to load the model into")
        return 2
    except Exception as error:
        traceback.print_exc()
        server.refuse("StartupError", f"the model could not be loaded: {_first_line(error)}")
        return 2
    try:
        server.run(worker)
    except RuntimeError as error:
        print(f"the engine gives up: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's end: the libraries' own threads and destructors have crashed there.
    os._exit(status)
