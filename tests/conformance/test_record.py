"""The results file, from reports as pytest makes them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_inference.version import __version__
from tests.conformance.record import Recorder, versions


def report(test: str, outcome: Any, *, engine: str = "e", when: Any = "call", said: str = "") -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=f"tests/conformance/test_x.py::{test}",
        location=("", 0, ""),
        keywords={},
        outcome=outcome,
        longrepr=("file", 1, f"Skipped: {said}") if outcome == "skipped" else None,
        when=when,
        user_properties=[("engine", engine)] if engine else [],
    )


def test_counts_failures_and_reasons(tmp_path: Path) -> None:
    file = tmp_path / "live.json"
    file.write_text(json.dumps({"other": {"passed": 3}, "absent": {"passed": 5}}))
    recorder = Recorder(file, {"e": ("pytest", "no-such-distribution")})
    recorder.pytest_runtest_logreport(report("test_a[e]", "passed", when="setup"))
    recorder.pytest_runtest_logreport(report("test_a[e]", "passed"))
    recorder.pytest_runtest_logreport(report("test_field[e-top_k]", "failed"))
    recorder.pytest_runtest_logreport(report("test_field[e-top_k]", "failed", when="teardown"))
    recorder.pytest_runtest_logreport(report("test_seed[e]", "skipped", said="refused: seed: no chance here"))
    recorder.pytest_runtest_logreport(report("test_die[e]", "skipped", said="it has no process of its own"))
    recorder.pytest_runtest_logreport(report("test_b[absent]", "skipped", engine="absent", said="not installed"))
    recorder.pytest_runtest_logreport(report("test_c", "passed", engine=""))
    recorder.pytest_runtest_logreport(report("test_a[some]", "passed", engine="some"))
    recorder.pytest_deselected([SimpleNamespace(user_properties=[("engine", "some")])])  # type: ignore[list-item]
    going_on: Any = SimpleNamespace(shouldstop=False, shouldfail=False)
    stopped: Any = SimpleNamespace(shouldstop=False, shouldfail="stopping after 1 failures")
    recorder.pytest_sessionfinish(going_on, pytest.ExitCode.INTERRUPTED)
    recorder.pytest_sessionfinish(stopped, pytest.ExitCode.TESTS_FAILED)
    assert "e" not in json.loads(file.read_text()), "half a run is no result"
    recorder.pytest_sessionfinish(going_on, pytest.ExitCode.TESTS_FAILED)
    written = json.loads(file.read_text())
    assert written["other"] == {"passed": 3}, "what was not run stays"
    assert "some" not in written, "nor is a choice of its tests"
    assert written["absent"] == {"passed": 5}, "what is not installed stays"
    entry = written["e"]
    assert (entry["passed"], entry["failed"]) == (1, ["test_field[top_k]"])
    assert entry["refused"] == {"test_seed": "seed: no chance here"}
    assert entry["not_run"] == {"test_die": "it has no process of its own"}
    assert entry["versions"] == {"llm-inference": __version__, "pytest": pytest.__version__}


def test_versions_of_an_engine_without_distributions() -> None:
    assert versions("fake", ()) == {"llm-inference": __version__}
