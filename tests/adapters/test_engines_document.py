from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters import openai, tgi


@pytest.fixture(scope="module")
def script(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "scripts" / "engines_document.py"))


def test_the_document_is_what_the_tables_say(script: dict[str, Any], repository: Path) -> None:
    written = (repository / "docs" / "engines.md").read_text()
    assert written == script["render"](), "run: python scripts/engines_document.py"


def test_live_is_what_was_run_and_has_passed(script: dict[str, Any]) -> None:
    evidence = script["evidence"]
    assert evidence(openai.PROFILE, {}) == "documented"
    assert evidence(tgi.PROFILE, {}) == "recorded"
    assert evidence(tgi.PROFILE, {"tgi": {"failed": []}}) == "live"
    assert evidence(tgi.PROFILE, {"tgi": {"failed": ["test_chat"]}}) == "recorded"
    assert evidence(tgi.PROFILE, {"vllm": {"failed": []}}) == "recorded"


def test_results_are_shown_with_versions_and_failures(script: dict[str, Any]) -> None:
    result = {"versions": {"b": "2", "a": "1"}, "date": "2020-02-02", "passed": 7, "refused": {"t": "why"}}
    text = "\n".join(script["live"]({"x": {**result, "failed": ["test_n"]}, "y": {**result, "failed": []}}))
    assert "| `x` | a 1, b 2 | 2020-02-02 | 7 | 1 | 1 |" in text
    assert "| `y` | a 1, b 2 | 2020-02-02 | 7 | 0 | 1 |" in text
    assert text.count("Failed with") == 1
    assert "Failed with `x`: `test_n`." in text
