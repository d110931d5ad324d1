"""The whole of it, with servers of `engine: fake`, a server that runs already, and one that cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.compare.comparison import Comparison
from llm_inference.tools.compare.contender import find_contenders
from llm_inference.tools.compare.run import Comparer, CompareSettings, compare
from tests.tools.bench.scripted import Script, scripted

QUICK = CompareSettings(rounds=2, quick=True, limit_s=20)


async def test_contenders_take_turns(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("engine: fake\nmodel: fake-a\n")
    (tmp_path / "broken.yaml").write_text("model: ./nothing\nengine: native\n")
    lines: list[str] = []
    saved: list[int] = []

    def save(result: Comparison) -> None:
        saved.append(sum(len(entry.runs) for entry in result.entries))

    async with scripted(Script()) as server:
        contenders = find_contenders(["a", f"url={server.url},name=other", "broken"], tmp_path)
        settings = CompareSettings(workloads=("W2", "W4"), rounds=2, quick=True, limit_s=20)
        result = await Comparer(contenders, settings, lines.append, save).run()
    a, other, broken = result.entries
    assert [run.round for run in a.runs] == [1, 2]
    assert all(set(run.measured) == {"W2", "W4"} for run in a.runs)
    assert a.runs[0].measured["W2"].output_tokens == sum(one.max_tokens for one in _w2_requests())
    assert (a.peak_rss_bytes or 0) > 10**7
    assert other.peak_rss_bytes is None
    assert len(other.runs) >= 1
    assert broken.error is not None
    assert "nothing" in broken.error
    assert len(broken.runs) == 1  # what cannot start is not tried again
    turns = [line.split(": ")[1] for line in lines if "starting" in line]
    assert turns[:3] == ["a", "other", "broken"]
    assert turns[3] == "a"
    assert saved == list(range(1, len(saved) + 1))


def _w2_requests() -> tuple:  # type: ignore[type-arg]
    from llm_inference.tools.compare.workloads import make_suite

    return make_suite(None, ["W2"], quick=True).workloads[0].requests


def test_an_interrupt_keeps_what_was_measured_and_leaves_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("engine: fake\nmodel: fake-a\n")
    (tmp_path / "b.yaml").write_text("engine: fake\nmodel: fake-b\n")
    measured = threading.Event()

    def interrupt() -> None:
        measured.wait(60)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = compare(find_contenders(["a", "b"], tmp_path), CompareSettings(workloads=("W2",), rounds=99, quick=True),
                     save=lambda result: measured.set())  # fmt: skip
    thread.join()
    assert result.interrupted
    assert result.entries[0].runs
    assert not [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and _serves(pid, tmp_path)]


def _serves(pid: Path, folder: Path) -> bool:
    try:
        return b"fake-a" in (pid / "cmdline").read_bytes() or str(folder).encode() in (pid / "cmdline").read_bytes()
    except OSError:
        return False


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="--rounds"):
        CompareSettings(rounds=0)
    with pytest.raises(ConfigError, match="--limit"):
        CompareSettings(limit_s=0)


async def test_a_server_that_goes_away_is_written_down(tmp_path: Path) -> None:
    contenders = find_contenders(["url=http://127.0.0.1:1,model=m"], tmp_path)
    result = await asyncio.wait_for(Comparer(contenders, QUICK, lambda line: None, lambda result: None).run(), 60)
    assert not result.ok
    assert "failed" in (result.entries[0].error or "")
