"""The programs under examples/ are what users copy: each runs against the default model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY
from tests.e2e.server import RunningServer

pytestmark = pytest.mark.e2e

EXAMPLES = REPOSITORY / "examples"
#: Run by a test of their own, elsewhere.
ELSEWHERE = {"locustfile.py"}
TESTED = {"openai_client.py", "streaming.py", "tool_call.py", "json_schema.py", "offline_batch.py"}


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - ELSEWHERE == TESTED


def test_openai_client(server: RunningServer) -> None:
    assert "Paris" in run("openai_client.py", server.base_url)


def test_streaming(server: RunningServer) -> None:
    first, second, story = run("streaming.py", server.base_url).rstrip("\n").split("\n", 2)
    assert "Paris" in first
    assert "4" in second.split("?", 1)[1]
    assert story.startswith("Once upon a time")


def test_tool_call(server: RunningServer) -> None:
    call, answer = run("tool_call.py", server.base_url).split("\n", 1)
    assert call.startswith("tool_calls: get_temperature(")
    assert set(json.loads(call.split("(", 1)[1].removesuffix(")"))) == {"city"}
    assert answer.strip()


def test_json_schema(server: RunningServer) -> None:
    answer = json.loads(run("json_schema.py", server.base_url))
    assert set(answer) == {"city", "country", "is_capital"}
    assert answer["city"] in ("Paris", "Rome", "Berlin")
    assert isinstance(answer["is_capital"], bool)


def test_offline_batch(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The capital of France is\nThe capital of Italy is\n1, 2, 3,\nHello\nWater is\n")
    lines = [json.loads(line) for line in run("offline_batch.py", str(prompts)).splitlines()]
    assert [line["prompt"] for line in lines] == prompts.read_text().splitlines()
    assert "Paris" in lines[0]["text"]
    assert "Rome" in lines[1]["text"]
    assert {line["finish_reason"] for line in lines} <= {"stop", "length"}
