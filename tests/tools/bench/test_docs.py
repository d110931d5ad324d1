"""`docs/benchmarking.md` and the commands in it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest

from llm_inference.cli.main import build_parser


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "benchmarking.md").read_text()


def test_every_command_is_one(page: str) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("llm-inference bench")]
    assert len(lines) >= 8
    for line in lines:
        args = build_parser().parse_args(shlex.split(line)[1:])
        from llm_inference.cli.bench import _settings

        assert _settings(args).api_url.endswith("/v1"), line


def test_every_flag_is_explained(page: str) -> None:
    group = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    benchmarks = next(
        action for action in group.choices["bench"]._actions if isinstance(action, argparse._SubParsersAction)
    )
    flags = [name for action in benchmarks.choices["serve"]._actions for name in action.option_strings]
    missing = [flag for flag in flags if flag.startswith("--") and flag != "--help" and flag not in page]
    assert missing == []


def test_every_failure_kind_is_explained(page: str, repository: Path) -> None:
    folder = repository / "src" / "llm_inference" / "tools" / "bench"
    kinds = {kind for file in folder.glob("*.py") for kind in re.findall(r'fail\("(\w+)"', file.read_text())}
    assert {"timeout", "truncated", "malformed"} <= kinds
    assert [kind for kind in kinds if f"`{kind}`" not in page] == []


def test_wrks_body_is_json(page: str) -> None:
    (template,) = re.findall(r"'(\{\"model\".*\})'", page)
    body = json.loads(template % ("m", "some words"))
    assert (body["model"], body["prompt"], body["ignore_eos"]) == ("m", "some words", True)


def test_the_python_example_runs(page: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    imports, _, rest = code.partition("\n\n")
    names: dict[str, object] = {}
    exec(imports, names)
    asked: list[object] = []

    class _Summary:
        p99 = 0.25

    class _Report:
        output_tokens_per_s = 100.0
        latencies = {"ttft_s": _Summary()}  # noqa: RUF012 - a stand-in

    def fake_run(settings: object) -> _Report:
        asked.append(settings)
        return _Report()

    names["run"] = fake_run
    exec(rest, names)
    assert len(asked) == 1
