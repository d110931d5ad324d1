"""What runs out around the real command: a reader of its log, file descriptors."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.e2e.server import READY_LINE, command

pytestmark = pytest.mark.e2e

BODY = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()


@contextmanager
def serving(*arguments: str, num_files: int | None = None) -> Iterator[tuple[str, IO[str]]]:
    """Its address, and its log from the line that names it on, which nobody else reads."""

    def limit() -> None:
        if num_files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, num_files))

    process = subprocess.Popen(
        command("serve", "--engine", "fake", "any", "--name", "fake", "--port", "0", *arguments),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )
    with process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := READY_LINE.search(line):
                    yield found["url"], process.stderr
                    break
            else:
                raise AssertionError("the server ended before it listened")
        finally:
            process.terminate()
            process.stderr.read()
    assert process.returncode == 0


def ask(url: str, path: str = "/v1/chat/completions") -> int:
    request = urllib.request.Request(url + path, data=BODY, headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return int(reply.status)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_log_that_nobody_reads_stops_nobody(workers: int, tmp_path: Path) -> None:
    with serving("--workers", str(workers)) as (url, _):
        for _ in range(1000):  # some 400 kB of log; a pipe holds 64
            assert ask(url) == 200


def test_without_file_descriptors_it_says_so_goes_on_and_recovers() -> None:
    with serving(num_files=80) as (url, log):
        address = urllib.parse.urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        idle = [socket.create_connection((address.hostname, address.port), timeout=10) for _ in range(100)]
        said = next(line for line in log if "out of file descriptors" in line)
        assert json.loads(said)["level"] == "error"
        assert "(this process may have 80 open)" in said
        # A connection that was there before is served.
        with closing(idle[0]) as old:
            old.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert old.recv(100).startswith(b"HTTP/1.1 200")
        for one in idle:
            one.close()
        next(line for line in log if "file descriptors are free again" in line)
        time.sleep(0.1)
        assert ask(url) == 200
