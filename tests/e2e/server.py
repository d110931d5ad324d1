"""Starts the real command as a user would, on a free port, and stops it again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

READY_LINE = re.compile(r"serving (?P<models>.+) on (?P<url>http://[\d.:]+)")


@dataclass
class RunningServer:
    process: subprocess.Popen[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def line_with(self, text: str, timeout_s: float = 60) -> str:
        """The newest line of the log with `text`. The log may be a little behind the answer that it is about."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in reversed(self.lines.copy()):
                if text in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no line with {text!r} in:\n{self.log}")

    def children(self) -> list[int]:
        """Descendants of the server, deepest last."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found.extend(int(child) for child in task.read_text().split())
        return found[1:]

    def stop(self, timeout_s: float = 40) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "llm_inference.cli.main", *arguments]


@contextmanager
def running_server(
    arguments: Sequence[str] = (), *, env: dict[str, str] | None = None, timeout_s: float = 180
) -> Iterator[RunningServer]:
    """`llm-inference serve ARGUMENTS` until it is ready to answer; stopped (and checked for orphans) afterwards."""
    process = subprocess.Popen(
        command("serve", "--port", "0", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
    )
    server = RunningServer(process)
    listening = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line.rstrip("\n"))
            if match := READY_LINE.search(line):
                server.url = match["url"]
                listening.set()
        listening.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert listening.wait(timeout_s), f"not listening after {timeout_s} s:\n{server.log}"
        assert server.url, f"the server ended before it listened:\n{server.log}"
        wait_ready(server, timeout_s)
        yield server
    finally:
        descendants = server.children()
        try:
            server.stop()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            reader.join(5)
            assert process.stdout is not None
            process.stdout.close()
        left = [pid for pid in descendants if is_alive(pid)]
        assert not left, f"processes were left behind: {left}"


def wait_ready(server: RunningServer, timeout_s: float = 60) -> None:
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(f"{server.url}/ready", timeout=5) as reply:
                assert reply.status == 200
                return
        except urllib.error.HTTPError as exc:
            exc.close()
            if exc.code != 503:
                raise
        except OSError:
            assert server.process.poll() is None, f"the server ended:\n{server.log}"
        assert time.monotonic() < deadline, f"not ready in time:\n{server.log}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
