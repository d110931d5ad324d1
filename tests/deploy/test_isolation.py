"""CPUs of its own, in each form that can name them; where the kubelet chooses, that is said."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from llm_inference.deploy.choices import Choices
from llm_inference.deploy.compose import render_compose
from llm_inference.deploy.docker import render_docker
from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.kubernetes import render_kubernetes
from llm_inference.deploy.render import render
from llm_inference.deploy.systemd import render_systemd
from llm_inference.errors import ConfigError
from tests.deploy.cases import cpu, on_ray, vllm
from tests.deploy.tools import run, tool

SET = Choices(cpu_set=(2, 3, 4, 8), hostname="example.org")


def test_systemd() -> None:
    unit = render_systemd(cpu(SET))["llm-inference.service"]
    assert re.findall(r"^CPUAffinity=(.*)$", unit, flags=re.MULTILINE) == ["2-4,8"]
    assert re.search(r"^CPUQuota=", unit, flags=re.MULTILINE) is None, "the core does not see it"


def test_docker() -> None:
    text = render_docker(cpu(SET))["Dockerfile.cpu"]
    assert " --cpuset-cpus 2-4,8 " in text
    assert "--cpus " not in text
    assert " --cpus 5 " in render_docker(cpu())["Dockerfile.cpu"]


def test_compose(written: Any) -> None:
    folder = written(render_compose(cpu(SET)))
    server = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["server-cpu"]
    assert (server["cpuset"], server["cpus"]) == ("2-4,8", 4)
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(folder / "compose.yaml"))
    assert "cpuset" not in render_compose(cpu())["compose.yaml"]


@pytest.mark.parametrize("target", ["kubernetes", "helm"])
def test_the_kubelet_chooses(target: str) -> None:
    with pytest.raises(ConfigError, match=f"--cpu-set: in {target} the kubelet chooses the CPUs"):
        render(target, cpu(SET))


@pytest.mark.parametrize("facts", [cpu(), cpu(Choices(cpus=7)), vllm()], ids=["computed", "said", "gpu"])
def test_a_pod_is_guaranteed_whole_cpus(facts: DeploymentFacts) -> None:
    """What the static CPU manager asks for: every container has whole CPUs and memory, requested as limited."""
    spec = yaml.safe_load(render_kubernetes(facts)["base/deployment.yaml"])["spec"]["template"]["spec"]
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert re.fullmatch(r"[1-9][0-9]*", resources["limits"]["cpu"])


def test_so_is_a_replica_on_ray() -> None:
    cluster = yaml.safe_load(render("ray", on_ray())["rayservice.yaml"])["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        for container in group["template"]["spec"]["containers"]:
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["resources"]["limits"]["cpu"].isdigit()
