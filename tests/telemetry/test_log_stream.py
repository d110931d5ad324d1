from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from llm_inference.telemetry.log_stream import LogStream


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "w", encoding="utf-8")
    yield read_end, stream
    stream.close()
    os.close(read_end)


def lost(count: int) -> str:
    return f"{count} lost\n"


def read_until(fd: int, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        found += os.read(fd, 1 << 16)
    return found


def test_a_pipe_with_a_reader_gets_every_line_at_once(pipe: tuple[int, TextIO]) -> None:
    read_end, stream = pipe
    before = set(threading.enumerate())
    out = LogStream(stream, lost)
    out.write("one\n")
    assert os.read(read_end, 100) == b"one\n"
    out.write("a ü\n" * 2000)  # more than one piece
    assert read_until(read_end, b"\n") == ("a ü\n" * 2000).encode()
    assert set(threading.enumerate()) <= before


def test_a_full_pipe_stops_nobody_and_loses_nothing_up_to_a_bound(pipe: tuple[int, TextIO]) -> None:
    read_end, stream = pipe
    out = LogStream(stream, lost, max_waiting_bytes=400_000)
    lines = [f"{number:06} {'x' * 92}\n" for number in range(3000)]  # 300 kB; a pipe holds 64
    for line in lines:
        out.write(line)
    assert read_until(read_end, lines[-1].encode()) == "".join(lines).encode()
    out.close(5)
    out.write("after\n")
    assert os.read(read_end, 100) == b"after\n"


def test_what_is_lost_is_counted_and_told_when_somebody_reads_again(pipe: tuple[int, TextIO]) -> None:
    read_end, stream = pipe
    out = LogStream(stream, lost, max_waiting_bytes=10_000)
    lines = [f"{number:06} {'x' * 92}\n" for number in range(3000)]
    for line in lines:
        out.write(line)
    text = read_until(read_end, b"lost\n").decode()
    *kept, told = text.splitlines(keepends=True)
    assert kept == lines[: len(kept)], "in order, whole, none between two others"
    assert told == f"{3000 - len(kept)} lost\n"
    assert 500 < len(kept) < 1000


def test_the_end_waits_for_a_reader_but_not_for_ever(pipe: tuple[int, TextIO]) -> None:
    read_end, stream = pipe
    out = LogStream(stream, lost)
    out.write("x" * 99_999 + "\n")
    out.close(0.05)
    assert len(read_until(read_end, b"\n")) == 100_000
    out.close(5)


def test_a_reader_that_went_away_is_an_error_of_the_stream() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        out = LogStream(stream, lost)
        out.write("x" * 100_000 + "\n")
        os.close(read_end)
        out.close(5)
        with pytest.raises(BrokenPipeError):
            out.write("more\n")


def test_a_file_is_written_to_directly(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        LogStream(stream, lost).write("one\n")
        assert (tmp_path / "log").read_text() == "one\n"


#: Logs far more than a pipe and the bound hold, says on stdout that it is through, then logs once more when told to.
PROGRAM = """
import logging, sys
from llm_inference.telemetry.logging import configure_logging, pass_on
configure_logging("info", "json", sys.stderr)
logger = logging.getLogger("llm_inference.test")
for number in range(30_000):
    logger.info("line", extra={"fields": {"number": number}})
pass_on("a line of a child")
configure_logging("info", "json", sys.stderr)
print("through", flush=True)
sys.stdin.readline()
logger.info("the end")
"""


def test_a_process_whose_log_nobody_reads_goes_on_and_tells_how_much_is_lost() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "through\n", "it did not wait for us"
        records = []
        while "lost" not in (record := json.loads(process.stderr.readline()))["message"]:
            records.append(record)
        process.stdin.write("\n")
        process.stdin.close()
        assert json.loads(process.stderr.readline())["message"] == "the end"
    assert [one["number"] for one in records] == list(range(len(records)))
    assert (record["level"], record["logger"]) == ("warning", "llm_inference.telemetry.logging")
    assert record["message"].startswith(f"{30_000 + 1 - len(records)} log lines are lost: ")
    assert process.returncode == 0
