"""Stages of a start add up to the whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_inference.native.stage_clock import StageClock, process_age_s


def test_stages_follow_each_other() -> None:
    times = iter([100.0, 101.0, 101.25, 104.0, 104.5])
    clock = StageClock(already_s=0.5, now=lambda: next(times))
    for stage in ("imports", "weights", "kv_cache", "imports"):
        clock.end(stage)
    assert clock.stages == {"imports": 2.0, "weights": 0.25, "kv_cache": 2.75}
    assert str(clock) == "5.0 s: imports 2.0, weights 0.2, kv cache 2.8"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_age_of_a_process(tmp_path: Path) -> None:
    assert 0 < process_age_s() < 86_400 * 365
    # A name may hold spaces and brackets.
    stat = tmp_path / "stat"
    stat.write_text(f"1 (a) b) S {' '.join(['0'] * 18)} 0 0")
    assert process_age_s(stat) > process_age_s(), "as old as the system"


@pytest.mark.parametrize("text", ["", "1 (a) S 0", "1 (a) S " + "x " * 25])
def test_a_system_that_does_not_say(text: str, tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(text)
    assert process_age_s(tmp_path / "stat") == 0.0
    assert process_age_s(tmp_path / "absent") == 0.0
