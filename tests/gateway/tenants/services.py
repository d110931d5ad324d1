"""Real servers that Debian packages bring: Redis and PostgreSQL, on free ports, with data that goes with them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_TIMEOUT_S = 30.0


def require_program(name: str, package: str, *, in_ci: bool, places: tuple[str, ...] = ()) -> str:
    """The program's path, or the end of the test: a skip for users, a failure in CI."""
    found = shutil.which(name) or next((str(path) for glob in places for path in sorted(Path("/").glob(glob))), None)
    if found is not None:
        return found
    message = f"{name} is not there; the Debian package {package} has it"
    if in_ci:
        pytest.fail(message + ", and CI must not skip it", pytrace=False)
    pytest.skip(message)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class RedisServer:
    program: str
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
        )
        wait_for(self._answers, "redis-server")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(7) == b"+PONG\r\n"


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    program = require_program("redis-server", "redis-server", in_ci=bool(os.environ.get("CI")))
    server = RedisServer(program, free_port())
    server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            server.kill()


@dataclass
class PostgresServer:
    binaries: Path
    folder: Path
    port: int
    as_user: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        flags = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]
        self.process = subprocess.Popen(
            [
                *self.as_user,
                str(self.binaries / "postgres"),
                "-D",
                str(self.folder / "data"),
                "-p",
                str(self.port),
                *flags,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )
        wait_for(self._answers, "postgres")

    def stop(self) -> None:
        """At once: connections are cut, as when the machine is gone."""
        assert self.process is not None
        pid = int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGQUIT)
        self.process.wait(_TIMEOUT_S)
        self.process = None

    def _answers(self) -> bool:
        import psycopg

        psycopg.connect(self.url, connect_timeout=1).close()
        return True


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    program = require_program(
        "postgres", "postgresql", in_ci=bool(os.environ.get("CI")), places=("usr/lib/postgresql/*/bin/postgres",)
    )
    folder = Path(tempfile.mkdtemp(prefix="llm-inference-pg-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # it refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    server = PostgresServer(Path(program).parent, folder, free_port(), as_user)
    try:
        subprocess.run(
            [
                *as_user,
                str(server.binaries / "initdb"),
                "-D",
                str(folder / "data"),
                "-U",
                "postgres",
                "-A",
                "trust",
                "-N",
            ],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # whatever a server that is not up yet makes of it
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError(f"{what} did not start within {_TIMEOUT_S:g} s")
