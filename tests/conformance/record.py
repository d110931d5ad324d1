"""What a run of the suite found, as data: `--record FILE` writes it, docs/engines.md shows it.

    {"<engine>": {"date", "python", "machine", "versions": {…}, "model",
                  "passed": N, "failed": [test, …], "refused": {test: reason}, "not_run": {test: reason}}}

Engines that were not in the run keep what the file says of them. "refused" are tests of what the engine's table says it
refuses (the 400 is a test of its own); "not_run" are tests that have no sense there.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from llm_inference.sources.cache import default_cache_dir
from llm_inference.sources.resolve import DEFAULT_SOURCE
from llm_inference.version import __version__


class Recorder:
    """A pytest plugin. A test belongs to the engine that its property "engine" names."""

    def __init__(self, file: Path, distributions: dict[str, tuple[str, ...]]) -> None:
        self._file = file
        self._distributions = distributions
        self._results: dict[str, dict[str, Any]] = {}
        self._partial: set[str] = set()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._partial.update(str(value) for item in items for name, value in item.user_properties if name == "engine")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        engine = dict(report.user_properties).get("engine")
        if engine is None or (report.when != "call" and report.outcome == "passed"):
            return
        entry = self._results.setdefault(str(engine), {"passed": 0, "failed": [], "refused": {}, "not_run": {}})
        name = report.nodeid.rsplit("::", 1)[1].replace(f"[{engine}]", "").replace(f"[{engine}-", "[")
        if report.outcome == "passed":
            entry["passed"] += 1
        elif report.outcome == "failed":
            entry["failed"].append(name)
        else:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            kind = "refused" if reason.startswith("refused: ") else "not_run"
            entry[kind][name] = reason.removeprefix("refused: ")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Half a run is no result: not one that was stopped, and not of an engine whose tests were picked from."""
        stopped = session.shouldstop or session.shouldfail
        if stopped or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        for engine, entry in self._results.items():
            if engine in self._partial or not (entry["passed"] or entry["failed"]):
                continue  # picked from, or not installed here: what is known of it stays
            about = {
                "date": datetime.date.today().isoformat(),
                "python": platform.python_version(),
                "machine": platform.machine(),
                "model": DEFAULT_SOURCE,
                "versions": versions(engine, self._distributions.get(engine, ())),
            }
            known[engine] = {**about, **entry, "failed": sorted(set(entry["failed"]))}
        self._file.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def versions(engine: str, distributions: Sequence[str]) -> dict[str, str]:
    """Of ourselves, and of the first of `distributions` in the engine's own venv, or in this one."""
    found = {"llm-inference": __version__}
    python = default_cache_dir() / "engines" / engine / "venv" / "bin" / "python"
    for name in distributions:
        version = _version_in(python, name) if python.exists() else _version_here(name)
        if version:
            found[name] = version
    return found


def _version_in(python: Path, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version_here(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
