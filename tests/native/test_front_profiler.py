"""The front's part of a profile against a core that a test plays."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from llm_inference.errors import EngineError, NotReadyError, OverloadedError
from llm_inference.native.client import CoreClient
from llm_inference.native.front_profiler import FrontProfiler
from llm_inference.native.wire import Profiled, ProfileSteps
from llm_inference.telemetry.profiling.figures import ProfileOrder, ProfileResult, StepFigures
from llm_inference.telemetry.stages import quiet
from tests.native.test_client import PlayedCore, pair

__all__ = ["pair"]

STEPS = StepFigures(runner="played", num_steps=2)
TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "tid": 1, "ts": 0, "dur": 100},
        {"ph": "X", "cat": "user_annotation", "name": "llm:sampling", "tid": 1, "ts": 10, "dur": 30},
    ]
}

Pair = tuple[CoreClient, PlayedCore]


async def begun(pair: Pair, folder: Path) -> tuple[FrontProfiler, asyncio.Task[ProfileResult], ProfileSteps]:
    client, core = pair
    profiler = FrontProfiler(client, folder)
    task = asyncio.create_task(profiler.run(ProfileOrder(num_steps=2, max_s=5.0), max_num_seqs=8))
    wanted = await core.hear()
    assert isinstance(wanted, ProfileSteps)
    return profiler, task, wanted


async def test_figures_of_both_sides(pair: Pair, tmp_path: Path) -> None:
    profiler, task, wanted = await begun(pair, tmp_path)
    assert wanted.order == ProfileOrder(num_steps=2, max_s=5.0)
    assert profiler.stages is not quiet
    work = profiler.staged("tokenizer", lambda seconds: time.sleep(seconds))
    await asyncio.to_thread(work, 0.02)
    Path(wanted.trace_file).write_text(json.dumps(TRACE))
    await pair[1].say(Profiled(wanted.profile_id, STEPS))
    result = await task
    profile = result.profile
    assert profile.steps == StepFigures(runner="played", num_steps=2, max_num_seqs=8)
    assert profile.trace.seconds["sampling"] == pytest.approx(30e-6)
    assert profile.front is not None
    assert profile.front.num_prepared == 1
    assert profile.front.seconds["tokenizer"] >= 0.02
    assert result.trace_gz.startswith(b"\x1f\x8b")
    assert profiler.stages is quiet
    assert list(tmp_path.glob("profile-*")) == []


async def test_one_at_a_time(pair: Pair, tmp_path: Path) -> None:
    profiler, task, wanted = await begun(pair, tmp_path)
    with pytest.raises(OverloadedError, match="another profile"):
        await profiler.run(ProfileOrder(), max_num_seqs=8)
    await pair[1].say(Profiled(wanted.profile_id, error="OverloadedError", message="another front has one"))
    with pytest.raises(OverloadedError, match="another front has one"):
        await task
    assert profiler.stages is quiet


async def test_no_step_ran(pair: Pair, tmp_path: Path) -> None:
    _, task, wanted = await begun(pair, tmp_path)
    await pair[1].say(Profiled(wanted.profile_id, StepFigures(runner="played", num_steps=0)))
    result = await task
    assert (result.profile.steps.num_steps, result.trace_gz) == (0, b"")


async def test_a_trace_that_cannot_be_read(pair: Pair, tmp_path: Path) -> None:
    _, task, wanted = await begun(pair, tmp_path)
    Path(wanted.trace_file).write_text("no JSON")
    await pair[1].say(Profiled(wanted.profile_id, STEPS))
    with pytest.raises(EngineError, match="the trace could not be read"):
        await task
    assert list(tmp_path.glob("profile-*")) == []


async def test_a_trace_that_is_too_large(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_inference.native.front_profiler.MAX_TRACE_BYTES", 50)
    _, task, wanted = await begun(pair, tmp_path)
    Path(wanted.trace_file).write_text(json.dumps(TRACE))
    await pair[1].say(Profiled(wanted.profile_id, STEPS))
    with pytest.raises(EngineError, match="profile fewer steps"):
        await task
    assert list(tmp_path.glob("profile-*")) == []


async def test_a_trace_that_comes_too_late_is_written_over(pair: Pair, tmp_path: Path) -> None:
    profiler, task, wanted = await begun(pair, tmp_path)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    Path(wanted.trace_file).write_text("of a profile that nobody waits for")
    again = asyncio.create_task(profiler.run(ProfileOrder(), max_num_seqs=8))
    wanted_again = await pair[1].hear()
    assert isinstance(wanted_again, ProfileSteps)
    assert wanted_again.profile_id != wanted.profile_id
    assert wanted_again.trace_file == wanted.trace_file
    await pair[1].say(Profiled(wanted_again.profile_id, StepFigures(runner="played", num_steps=0)))
    await again
    assert list(tmp_path.glob("profile-*")) == []


async def test_the_core_goes_away_or_is_not_there(pair: Pair, tmp_path: Path) -> None:
    profiler, task, _ = await begun(pair, tmp_path)
    pair[0].lost("the engine's process ended")
    with pytest.raises(EngineError, match="process ended"):
        await task
    with pytest.raises(NotReadyError):
        await profiler.run(ProfileOrder(), max_num_seqs=8)
    assert profiler.stages is quiet


async def test_a_core_that_does_not_answer(pair: Pair, tmp_path: Path) -> None:
    client, core = pair
    asking = asyncio.create_task(client.profile(ProfileSteps("a", ProfileOrder(), str(tmp_path / "t")), 0.05))
    await core.hear()
    with pytest.raises(EngineError, match="no profile within"):
        await asking
    await core.say(Profiled("a", STEPS))  # too late, for nobody
    await core.say(Profiled("b", STEPS))
    await asyncio.sleep(0.02)
    assert client.connected
