"""`llm-inference profile`: flags, what is printed, and what becomes of the trace. The profile itself is played."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_inference.cli.main import main
from llm_inference.config.schema import ModelConfig
from llm_inference.telemetry.profiling.figures import Profile, ProfileOrder, ProfileResult, StepFigures, TraceFigures
from llm_inference.tools import profile
from llm_inference.tools.profile import Workload

TRACE = b'{"traceEvents": []}'
RESULT = ProfileResult(
    profile=Profile(
        trace=TraceFigures(wall_s=1.0, seconds={"tokenizer": 0.6, "library": 0.4}),
        steps=StepFigures(runner="played", num_steps=5),
    ),
    trace_gz=gzip.compress(TRACE),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ModelConfig, Workload, ProfileOrder]]:
    """What the command asks for."""
    calls = []

    def run(model: ModelConfig, workload: Workload, order: ProfileOrder) -> ProfileResult:
        calls.append((model, workload, order))
        return RESULT

    monkeypatch.setattr(profile, "run", run)
    return calls


def test_words_and_a_packed_trace(asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json.gz"
    flags = ["--steps", "5", "--seconds", "9", "--requests", "3", "--prompt-words", "7", "--output-len", "11"]
    assert main(["profile", "--runner", "torch", *flags, "--trace", str(file)]) == 0
    [(model, workload, order)] = asked
    assert model.runner == "torch"
    assert workload == Workload(num_requests=3, prompt_words=7, max_tokens=11)
    assert (order.num_steps, order.max_s) == (5, 9.0)
    out = capsys.readouterr().out
    assert out.startswith("Likely bottleneck: tokenizer and CPU work\n")
    assert "attention by: the runner's library" in out
    assert out.endswith(f"trace: {file} (Perfetto and TensorBoard show it)\n")
    assert gzip.decompress(file.read_bytes()) == TRACE


def test_json_and_a_plain_trace(asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    assert main(["profile", "--json", "--trace", str(file)]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert printed.err.startswith(f"trace: {file}")
    assert report["findings"][0]["kind"] == "tokenizer"
    assert report["profile"]["steps"]["num_steps"] == 5
    assert file.read_bytes() == TRACE


def test_a_trace_that_cannot_be_written(asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--trace", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "Likely bottleneck" in printed.out
    assert f"--trace: {tmp_path} cannot be written: Is a directory" in printed.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "0"], "--steps: must be above 0 and at most 100"),
        (["--steps", "101"], "--steps"),
        (["--seconds", "61"], "--seconds"),
        (["--seconds", "nan"], "--seconds"),
        (["--requests", "0"], "--requests"),
        (["--prompt-words", "-1"], "--prompt-words"),
        (["--trace", "absent/folder/trace.json"], "--trace: the folder"),
        (["--url", "http://127.0.0.1:1/v1"], "--api-key"),
        (["--url", "ftp://127.0.0.1/v1", "--api-key", "k"], "--url"),
        (["--url", "http://127.0.0.1:1/v1", "--api-key", "k"], "no answer from"),
    ],
)
def test_mistakes(flags: list[str], words: str, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *flags]) == 2
    assert words in capsys.readouterr().err
    assert asked == []


class Played:
    """A server that answers everything with `reply`."""

    def __init__(self) -> None:
        self.reply: dict[str, Any] = {}
        self.bodies: list[Any] = []
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                played.bodies.append((self.path, self.headers["authorization"], body))
                content = json.dumps(played.reply).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@pytest.fixture
def played() -> Iterator[Played]:
    one = Played()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


def test_a_running_server(played: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    played.reply = {"text": ["Likely bottleneck: copies"], "findings": [], "trace_gz": None}
    target = ["profile", "small", "--url", played.url, "--api-key", "k"]
    assert main([*target, "--steps", "7", "--replica", "small#1", "--trace", str(tmp_path / "t.json")]) == 0
    wanted = {"model": "small", "replica": "small#1", "steps": 7, "seconds": 60.0, "trace": True}
    assert played.bodies == [("/v1/admin/profile", "Bearer k", wanted)]
    assert capsys.readouterr().out == "Likely bottleneck: copies\nno trace: no step was recorded\n"
    played.reply = {"object": "list"}
    assert main(target) == 2
    assert "does not answer like llm-inference" in capsys.readouterr().err
