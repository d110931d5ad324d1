"""One supervisor for all children: spawn, wait until ready, watch, restart with back-off, drain, kill.

    stopped ──start()──► starting ──ready()──► ready ──child dies──► restarting ──ready()──► ready
                            │                    │                       │
                            └─StartupError       └──stop()──► stopped    └─budget spent──► failed

A child is found again by a mark in its environment, not by its parent: grandchildren that were orphaned or left the
session are killed with it; and by its session, since a process that renames itself may write over its environment. The
mark and the parent-death signal (see `process_shim`) leave no orphans, whoever dies first. This module knows nothing of
engines, models or sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from llm_inference.errors import EngineError, StartupError

_MARK = "LLM_INFERENCE_CHILD"
_KEPT_LINES = 200
#: Of a kept line: progress bars are one line that never ends.
_MAX_LINE_CHARS = 2000
_SHOWN_LINES = 10
_SHOWN_COMPLAINTS = 5
#: The end of a traceback, or what a program in another language says: `ValueError: …`, `error: …`.
_COMPLAINT = re.compile(r"(?:\b|[a-z])(?:Error|Exception)\b: .|\b(?:error|fatal)\b: .|out of memory", re.IGNORECASE)
_SHIM = Path(__file__).with_name("process_shim.py")


class ChildState(Enum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `max_restarts` within `window_s`; waits `backoff_s`, doubled each time up to `max_backoff_s`."""

    max_restarts: int = 5
    window_s: float = 600.0
    backoff_s: float = 0.2
    max_backoff_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run and how to tell that it is ready.

    `ready` is awaited after each spawn and returns when the child can work; it may raise `StartupError` itself.
    `on_exit` is told of a death that nobody asked for, with the exit description; `on_ready` of each start;
    `on_failed` when the restart budget is spent.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], Awaitable[None]]
    ready_timeout_s: float = 600.0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    on_exit: Callable[[str], None] = lambda reason: None
    on_ready: Callable[[], None] = lambda: None
    on_failed: Callable[[str], None] = lambda reason: None
    on_line: Callable[[str], None] = lambda line: None
    policy: RestartPolicy = RestartPolicy()


def in_public(reason: str) -> str:
    """A child's end as anybody may read it: without the lines that the child wrote, which the log has."""
    return reason.partition("; its last lines:")[0].partition("\n")[0]


class Child:
    """One supervised process and its descendants."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._mark = uuid.uuid4().hex
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._restarts: deque[float] = deque()
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._state = ChildState.STOPPED
        self._reason = ""
        self.num_restarts = 0

    @property
    def state(self) -> ChildState:
        return self._state

    @property
    def reason(self) -> str:
        """Why it is not ready: the last exit, or how the restart budget was spent."""
        return self._reason

    @property
    def public_reason(self) -> str:
        """`reason`, `in_public`."""
        return in_public(self._reason)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def last_lines(self) -> list[str]:
        """The newest lines that the child wrote, standard output and error together."""
        return list(self._tail)

    async def start(self) -> None:
        """Spawn and wait until ready. Raises `StartupError` with the child's last words; nothing is left running."""
        if self._state not in (ChildState.STOPPED, ChildState.FAILED):
            raise EngineError(f"{self._spec.name} is already {self._state.value}")
        self._state = ChildState.STARTING
        try:
            await self._spawn_and_wait()
        except BaseException:
            await self._kill()
            self._state = ChildState.STOPPED
            raise
        self._become_ready()
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self._spec.name}")

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, wait up to `grace_s`, then SIGKILL for it and every descendant. Safe to call twice."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), grace_s)
        await self._kill()
        self._state = ChildState.STOPPED

    async def _spawn_and_wait(self) -> None:
        spec = self._spec
        argv = (sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), *spec.argv)
        self._tail.clear()
        # A pipe of our own: with asyncio's, `wait()` would also wait for grandchildren that hold it open.
        try:
            read_end, write_end = os.pipe()
        except OSError as exc:  # too many open files: brought back later, as from any other failure
            raise StartupError(f"cannot start {spec.name}: {exc}") from exc
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **spec.env, _MARK: self._mark},
                cwd=spec.cwd,
                start_new_session=True,  # so that a terminal's Ctrl-C reaches us alone, and we drain it
            )
        except OSError as exc:
            os.close(read_end)
            raise StartupError(f"cannot start {spec.name}: {exc}") from exc
        finally:
            os.close(write_end)
        self._reader = asyncio.create_task(self._read_lines(read_end), name=f"read {spec.name}")
        ready = asyncio.ensure_future(spec.ready())
        exited = asyncio.create_task(self._process.wait())
        try:
            done, _ = await asyncio.wait(
                {ready, exited}, timeout=spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ready in done:
                await ready  # raises what `ready` raised
                return
            if exited in done:
                # It may have told its reason in the very moment it died: give `ready` a last chance to raise it.
                await asyncio.wait({ready}, timeout=0.2)
                if ready.done() and ready.exception() is not None:
                    await ready
                await self._finish_reading()
                raise StartupError(f"{spec.name} {self._describe_exit()} before it was ready{self._last_words()}")
            raise StartupError(
                f"{spec.name} was not ready after {spec.ready_timeout_s:.0f} s; it was stopped{self._last_words()}"
            )
        finally:
            for task in (ready, exited):
                task.cancel()
            await asyncio.gather(ready, exited, return_exceptions=True)

    async def _watch(self) -> None:
        """Until cancelled: wait for a death, tell of it, bring the child back."""
        while True:
            assert self._process is not None
            await self._process.wait()
            await self._finish_reading()
            self._reason = f"{self._spec.name} {self._describe_exit()}{self._last_words()}"
            self._state = ChildState.RESTARTING
            self._spec.on_exit(self._reason)
            if not await self._bring_back():
                self._state = ChildState.FAILED
                self._spec.on_failed(self._reason)
                return

    async def _bring_back(self) -> bool:
        policy = self._spec.policy
        while True:
            await self._kill()
            now = time.monotonic()
            while self._restarts and now - self._restarts[0] > policy.window_s:
                self._restarts.popleft()
            if len(self._restarts) >= policy.max_restarts:
                self._reason = (
                    f"{self._spec.name} was restarted {len(self._restarts)} times in {policy.window_s:.0f} s and is "
                    f"given up; last: {self._reason}"
                )
                return False
            if self._restarts:
                await asyncio.sleep(min(policy.backoff_s * 2 ** (len(self._restarts) - 1), policy.max_backoff_s))
            self._restarts.append(time.monotonic())
            self.num_restarts += 1
            try:
                await self._spawn_and_wait()
            except StartupError as exc:
                self._reason = exc.message
                continue
            self._become_ready()
            return True

    def _become_ready(self) -> None:
        self._state = ChildState.READY
        self._reason = ""
        self._spec.on_ready()

    async def _read_lines(self, read_end: int) -> None:
        reader = asyncio.StreamReader(limit=1 << 20)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
        )
        try:
            while True:
                try:
                    raw = await reader.readline()
                except ValueError:  # a line beyond the limit: its beginning is dropped
                    continue
                if not raw:
                    return
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                self._tail.append(line[:_MAX_LINE_CHARS])
                self._spec.on_line(line)
        finally:
            transport.close()

    async def _finish_reading(self) -> None:
        """Read what a dead child left in the pipe; a surviving grandchild may hold it open, hence the bound."""
        if self._reader is not None:
            await asyncio.wait({self._reader}, timeout=0.5)

    async def _kill(self) -> None:
        """SIGKILL to the child, its session and every process that carries its mark."""
        process = self._process
        if process is None:
            return
        for _ in range(5):  # a fork may slip in between the look and the kill
            pids = _family(self._mark, process.pid, leader_lives=process.returncode is None)
            if process.returncode is None:
                pids.add(process.pid)
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        await process.wait()
        if self._reader is not None:
            await self._finish_reading()
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None
        self._process = None

    def _describe_exit(self) -> str:
        assert self._process is not None
        code = self._process.returncode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"exited with {code}"

    def _last_words(self) -> str:
        """The last lines, and before them the complaints among those that came earlier.

        A parent of several processes dies with a long traceback that says nothing; why is what one of them said before.
        """
        lines = [line for line in self._tail if line.strip()]
        last = lines[-_SHOWN_LINES:]
        before = [line for line in lines[:-_SHOWN_LINES] if _COMPLAINT.search(line)][-_SHOWN_COMPLAINTS:]
        return "; its last lines:\n  " + "\n  ".join([*before, *(["…"] if before else []), *last]) if lines else ""


def _family(mark: str, session: int, *, leader_lives: bool) -> set[int]:
    """Processes whose environment carries `mark`, or of the child's `session`. Linux only; elsewhere the child alone.

    A `session` that has a leader although the child is dead is somebody else's: its number was given out again.
    """
    needle = f"{_MARK}={mark}".encode()
    marked: set[int] = set()
    members: set[int] = set()
    proc = Path("/proc")
    if not proc.is_dir():
        return marked
    own = os.getpid()
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, _, _, its_session, *_ = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if state == "Z":
                continue
            if int(its_session) == session:
                members.add(int(entry.name))
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                marked.add(int(entry.name))
    return marked if session in members and not leader_lives else marked | members
