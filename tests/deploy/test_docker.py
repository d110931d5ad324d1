"""Dockerfiles: what hadolint says, and what they must have."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
import yaml

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.deploy import pins
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.docker import kinds, render_docker
from llm_inference.deploy.facts import compute_facts
from llm_inference.errors import ConfigError
from tests.deploy.cases import CASES, CPU_NEEDS, FAKE_NEEDS, cpu, gateway, vllm
from tests.deploy.test_quoting import HOSTILE
from tests.deploy.tools import run, tool

STAGE = re.compile(r"^FROM ", flags=re.MULTILINE)


@pytest.mark.parametrize("case", CASES)
def test_hadolint_has_nothing_to_say(case: str, written: Any) -> None:
    folder = written(render_docker(CASES[case]()))
    for file in folder.glob("Dockerfile.*"):
        assert run(tool("hadolint"), "--failure-threshold", "style", str(file)) == ""


def test_kinds() -> None:
    assert kinds(cpu()) == ("cpu", "cuda")
    assert kinds(cpu(Choices(device="cpu"))) == ("cpu",)
    assert kinds(vllm()) == ("cuda",)
    assert kinds(gateway()) == ("cpu",)


@pytest.mark.parametrize("file", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_the_last_stage(file: str) -> None:
    text = render_docker(cpu())[file]
    build, last = STAGE.split(text)[1:]
    assert "AS build" in build
    assert "pip install" not in last
    assert not re.search(r"\b(gcc|g\+\+|build-essential|python3-dev)\b", last)
    assert "\nUSER 10001:10001\n" in last
    assert last.index("USER 10001") < last.index("ENTRYPOINT")
    [health] = re.findall(r"CMD (\[\"python3.*\])$", last, flags=re.MULTILINE)
    compile(json.loads(health)[2], "healthcheck", "exec")
    assert "http://127.0.0.1:8000/health" in json.loads(health)[2]
    assert re.search(r"^VOLUME \[\"/cache\"\]$", last, flags=re.MULTILINE)
    assert "--gpus all" in text if file.endswith("cuda") else "--gpus" not in text


def test_the_kernels_are_compiled_while_there_is_a_compiler() -> None:
    files = render_docker(cpu())
    build, last = STAGE.split(files["Dockerfile.cpu"])[1:]
    command = "/opt/llm-inference/bin/python -m llm_inference.native.runner.compiled.build --portable"
    assert build.index("gcc libc6-dev") < build.index("llm-inference[") < build.index(command)
    assert "compiled" not in last + files["Dockerfile.cuda"]


def test_an_engine_has_its_own_venv_and_only_then_a_compiler() -> None:
    text = render_docker(vllm())["Dockerfile.cuda"]
    build, last = STAGE.split(text)[1:]
    assert '/opt/vllm/bin/pip install ${PIP_ARGS} "vllm==0.33.0"' in build
    assert "ln -s /opt/vllm/bin/vllm /opt/engines/vllm" in last
    assert "gcc" in last
    assert 'PATH="/opt/llm-inference/bin:/opt/engines:${PATH}"' in last


def test_everything_is_pinned() -> None:
    files = render_docker(cpu())
    assert files["constraints.txt"].splitlines()[1:] == list(pins.PACKAGES)
    for kind in ("cpu", "cuda"):
        text = files[f"Dockerfile.{kind}"]
        assert re.search(r'^ARG BASE_IMAGE="[\w./-]+:[\w.-]+"$', text, flags=re.MULTILINE)
        assert all("==" in one for one in re.findall(r'pip install \$\{PIP_ARGS\}[^"]* "([^"]+)"', text))


def test_the_context_lets_nothing_else_in() -> None:
    ignore = [line for line in render_docker(cpu())[".dockerignore"].splitlines() if not line.startswith("#")]
    assert ignore == ["*", "!constraints.txt", "!wheels"]


def test_local_models_are_mounted_read_only() -> None:
    need = dataclasses.replace(CPU_NEEDS, local_path="/srv/m", download_bytes=0)
    config = ServerConfig(models=(ModelConfig(model="/srv/m"),))
    files = render_docker(compute_facts(config, [need], Choices()))
    assert '-v "/srv/m:/models/0/m:ro"' in files["Dockerfile.cpu"]
    assert yaml.safe_load(files["config/config.yaml"])["models"][0]["model"] == "/models/0/m"


@pytest.mark.parametrize("name", [text for text in HOSTILE if text])
def test_hostile_names_stay_in_their_place(name: str) -> None:
    """The image's description is a label; a name that cannot be one is refused, and no instruction appears."""
    config = ServerConfig(models=(ModelConfig(name=name, model="m", engine="fake"),))
    facts = compute_facts(config, [FAKE_NEEDS], Choices())
    if re.search(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u2028\ufeff]", name):
        with pytest.raises(ConfigError, match="a Dockerfile cannot hold"):
            render_docker(facts)
        return
    text = render_docker(facts)["Dockerfile.cpu"]
    plain = compute_facts(
        ServerConfig(models=(ModelConfig(name="x", model="m", engine="fake"),)), [FAKE_NEEDS], Choices()
    )
    shape = [line.split(" ")[0] for line in render_docker(plain)["Dockerfile.cpu"].splitlines()]
    assert [line.split(" ")[0] for line in text.splitlines()] == shape


def test_extras_are_those_of_the_package(repository: Any) -> None:
    declared = set(re.findall(r"^(\w+) = \[", (repository / "pyproject.toml").read_text(), flags=re.MULTILINE))
    files = render_docker(cpu())
    extras = {
        kind: re.findall(r'"llm-inference\[([\w,]+)\]==', files[f"Dockerfile.{kind}"]) for kind in ("cpu", "cuda")
    }
    assert extras == {"cpu": ["cpu,store"], "cuda": ["store"]}
    assert {one for found in extras.values() for one in found[0].split(",")} <= declared
