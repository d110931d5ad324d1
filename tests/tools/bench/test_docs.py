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
    assert len(lines) >= 16
    for line in lines:
        args = build_parser().parse_args(shlex.split(line)[1:])
        if line.startswith("llm-inference bench serve"):
            from llm_inference.cli.bench import _settings

            assert _settings(args).api_url.endswith("/v1"), line
        elif not line.startswith("llm-inference bench kernels"):
            from llm_inference.cli.bench_compare import _precisions
            from llm_inference.cli.bench_compare import _settings as _compare_settings
            from llm_inference.tools.compare.workloads import NAMES

            assert set(_compare_settings(args).workloads) <= set(NAMES), line
            assert _precisions(args.precision) is not None


def test_every_peer_in_a_command_is_one(page: str, repository: Path) -> None:
    names = re.findall(r"(?:compare|engine)((?: [a-z][\w-]*)+)", page)
    peers = {path.stem for path in (repository / "benchmarks" / "peers").glob("*.yaml")}
    found = {word for group in names for word in group.split() if re.fullmatch(r"[a-z]+-[a-z0-9_]+(-\w+)?", word)}
    assert found
    assert found <= peers


def test_the_example_of_a_contender_is_one(page: str, tmp_path: Path) -> None:
    from llm_inference.tools.compare.contender import find_contenders

    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "one.yaml").write_text(block)
    [one] = find_contenders(["one"], tmp_path)
    assert (one.title, one.bench.gguf) == ("llama.cpp Q8_0", "Q8_0")


@pytest.mark.parametrize("name", ["serve", "compare", "engine", "kernels"])
def test_every_flag_is_explained(page: str, name: str) -> None:
    group = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    benchmarks = next(
        action for action in group.choices["bench"]._actions if isinstance(action, argparse._SubParsersAction)
    )
    flags = [name for action in benchmarks.choices[name]._actions for name in action.option_strings]
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
