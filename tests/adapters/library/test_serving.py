"""The worker's half alone, spoken to over its socket."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.library.plan import SERVING
from tests.adapters.library.stub import ARGV

SAMPLING = {"max_tokens": 5, "ignore_eos": True, "eos_token_ids": [1], "logprobs": None}
Start = Callable[..., subprocess.Popen[bytes]]


class Talk:
    """One connection, line by line."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        deadline = time.monotonic() + 60
        while True:
            try:
                self._socket.connect(str(path))
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        self._file = self._socket.makefile("rb")

    def say(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def send(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next message that is one of `kinds`."""
        while line := self._file.readline():
            message: dict[str, Any] = json.loads(line)
            if message["type"] in kinds:
                return message
        raise EOFError

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def run(**habits: Any) -> subprocess.Popen[bytes]:
        setup = tmp_path / "setup.json"
        setup.write_text(json.dumps({"socket_path": str(tmp_path / "s"), "stub": habits}))
        processes.append(subprocess.Popen([*ARGV, str(setup)], stderr=subprocess.DEVNULL))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = f"import runpy; runpy.run_path({str(SERVING)!r}, run_name='serving')"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_a_request_from_its_beginning_to_its_end(start: Start, tmp_path: Path) -> None:
    process = start()
    talk = Talk(tmp_path / "s")
    talk.say(type="hello")
    assert talk.hear("ready")["report"] == {"precision": "stub"}
    talk.say(type="submit", id="a", token_ids=[5, 6], sampling=SAMPLING)
    heard = [talk.hear("tokens") for _ in range(5)]
    assert [message["ids"] for message in heard] == [[5], [6], [5], [6], [5]]
    assert [message["finish_reason"] for message in heard] == [None] * 4 + ["length"]
    assert talk.hear("stats")["stats"]["num_running"] == 0
    talk.close()
    process.terminate()
    assert process.wait(5) == 0


def test_what_is_no_message_harms_nobody(start: Start, tmp_path: Path) -> None:
    start(reject=7, reject_oddly=8)
    talk = Talk(tmp_path / "s")
    talk.send(b"nonsense\n\xff\xfe\n")
    talk.say(type="abort", id="nobody")
    talk.say(type="submit", id="a", token_ids=[7], sampling=SAMPLING)
    error = talk.hear("error")
    assert (error["id"], error["error"], error["param"]) == ("a", "InvalidRequestError", "prompt")
    talk.say(type="submit", id="b", token_ids=[8], sampling=SAMPLING)
    assert talk.hear("error")["error"] == "EngineError"
    whole = json.dumps({"type": "submit", "id": "c", "token_ids": [5], "sampling": SAMPLING}).encode() + b"\n"
    for byte in whole:
        talk.send(bytes([byte]))
    assert talk.hear("tokens")["id"] == "c"
    talk.close()


def test_aborting_ends_the_work(start: Start, tmp_path: Path) -> None:
    start()
    talk = Talk(tmp_path / "s")
    talk.say(type="submit", id="a", token_ids=[5], sampling={**SAMPLING, "max_tokens": 10**6})
    talk.hear("tokens")
    talk.say(type="abort", id="a")
    while talk.hear("stats")["stats"]["num_running"]:
        pass
    talk.close()


def test_one_front_cannot_abort_another_s_work(start: Start, tmp_path: Path) -> None:
    start()
    one, other = Talk(tmp_path / "s"), Talk(tmp_path / "s")
    one.say(type="submit", id="a", token_ids=[5], sampling={**SAMPLING, "max_tokens": 40})
    one.hear("tokens")
    other.say(type="abort", id="a")
    while one.hear("tokens")["finish_reason"] is None:
        pass
    one.close()
    other.close()


def test_a_heartbeat_while_nothing_happens(start: Start, tmp_path: Path) -> None:
    start()
    talk = Talk(tmp_path / "s")
    talk.say(type="hello")
    assert talk.hear("stats")["stats"]["num_running"] == 0
    talk.close()


def test_a_refusal_is_told_to_the_front(start: Start, tmp_path: Path) -> None:
    process = start(refuse="so not")
    talk = Talk(tmp_path / "s")
    talk.say(type="hello")
    assert talk.hear("failed") == {"type": "failed", "error": "ConfigError", "message": "so not"}
    talk.close()
    assert process.wait(5) == 2
