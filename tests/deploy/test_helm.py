"""The chart with the real helm: valid objects, every value with its effect, and refusals of what cuts streams."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.config.load import load_config
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.helm import render_helm
from llm_inference.errors import ConfigError
from tests.deploy.cases import CASES, cpu, gateway, vllm
from tests.deploy.tools import run, tool


def template(chart: Path, *flags: str) -> str:
    done = subprocess.run(
        [tool("helm"), "template", "rel", str(chart), *flags], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise ConfigError(done.stderr)
    return done.stdout


@pytest.fixture
def chart(written: Any) -> Path:
    folder: Path = written(render_helm(cpu()))
    return folder / "llm-inference"


def case_of(name: str) -> Any:
    # The chart has no KEDA, and one signal.
    return CASES[name](Choices()) if name in ("vllm", "tiers") else CASES[name]()


@pytest.mark.parametrize("case", CASES)
def test_it_lints_and_its_objects_are_valid(case: str, written: Any) -> None:
    chart = written(render_helm(case_of(case))) / "llm-inference"
    run(tool("helm"), "lint", "--strict", str(chart))
    file = chart / "all.yaml"
    file.write_text(template(chart))
    run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))


def test_the_configuration_is_ours(chart: Path, tmp_path: Path) -> None:
    [found] = [one for one in yaml.safe_load_all(template(chart)) if one["kind"] == "ConfigMap"]
    file = tmp_path / "config.yaml"
    file.write_text(found["data"]["config.yaml"])
    config = load_config(file, environ={"LLM_INFERENCE_API_KEYS_1": "k"}).config
    assert config.models[0].kv_cache_memory == cpu().config.models[0].kv_cache_memory
    assert config.api.host == "0.0.0.0"


CHANGES = {
    "config.api.max_concurrent_requests": "7",
    "image.repository": "registry.example.org/llm",
    "image.tag": "9",
    "image.pullPolicy": "Always",
    "existingSecret": "other",
    "resources.cpu": "9",
    "resources.memory": "9Gi",
    "resources.gpus": "2",
    "resources.sharedMemory": "1Gi",
    "probes.startupSeconds": "999",
    "shutdown.preStopSeconds": "7",
    "shutdown.graceSeconds": "99",
    "cache.persistent": "false",
    "cache.size": "99Gi",
    "cache.storageClass": "fast",
    "cache.accessMode": "ReadWriteOnce",
    "autoscaling.enabled": "false",
    "autoscaling.minReplicas": "3",
    "autoscaling.maxReplicas": "9",
    "autoscaling.waitingPerPod": "9",
    "ingress.enabled": "false",
    "ingress.className": "other",
    "ingress.host": "other.example.org",
    "ingress.tlsSecret": "other",
    "monitoring.enabled": "true",
    "networkPolicy.enabled": "false",
    "networkPolicy.namespaces[0]": "other",
    "networkPolicy.egressPorts[0]": "8443",
    "nodeSelector.disk": "ssd",
    "tolerations[0].key": "other",
}


@pytest.mark.parametrize("value", CHANGES)
def test_every_value_has_an_effect(value: str, chart: Path) -> None:
    assert template(chart, "--set", f"{value}={CHANGES[value]}") != template(chart)


def test_replicas_count_while_nothing_scales(chart: Path) -> None:
    fixed = template(chart, "--set", "autoscaling.enabled=false,replicas=7")
    [found] = [one for one in yaml.safe_load_all(fixed) if one["kind"] == "Deployment"]
    assert found["spec"]["replicas"] == 7


def test_every_value_is_among_the_changes(chart: Path) -> None:
    values = yaml.safe_load((chart / "values.yaml").read_text())
    leaves = {"replicas"} | {change.split("[")[0] for change in CHANGES}
    for section, inner in values.items():
        if section == "config":
            continue
        names = [f"{section}.{key}" for key in inner] if isinstance(inner, dict) and inner else [section]
        assert [name for name in names if name not in leaves and section + ".disk" not in leaves] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("shutdown.graceSeconds=35", "graceSeconds must be above shutdown.preStopSeconds"),
        ("config.api.shutdown_grace_s=60", "graceSeconds must be above"),
        ("config.api.api_keys[0]=plain", "config.api.api_keys holds a key"),
        ("config.api.keys[0].key=plain", "config.api.keys holds a key"),
        ("config.api.api_keys=null", "everybody could use the service"),
        ("ingress.host=", "ingress.host: the name under which clients come"),
    ],
)
def test_refused(change: str, message: str, chart: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        template(chart, "--set", change)


def test_another_configuration_rolls_out(chart: Path) -> None:
    def checksum(*flags: str) -> str:
        [found] = [one for one in yaml.safe_load_all(template(chart, *flags)) if one["kind"] == "Deployment"]
        return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum() != checksum("--set", "config.api.workers=2")


@pytest.mark.parametrize("choices", [Choices(autoscaler="keda"), Choices(scale_on="running")], ids=["keda", "running"])
def test_what_the_chart_has_not(choices: Choices) -> None:
    with pytest.raises(ConfigError, match="use `deploy kubernetes`"):
        render_helm(cpu(choices))


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        ("llm:1", "llm", "1"),
        ("registry.example.org:5000/llm", "registry.example.org:5000/llm", ""),
        ("llm@sha256:" + "0" * 64, "llm@sha256:" + "0" * 64, ""),
    ],
)
def test_images(image: str, repository: str, tag: str, written: Any) -> None:
    chart = written(render_helm(cpu(Choices(image=image)))) / "llm-inference"
    values = yaml.safe_load((chart / "values.yaml").read_text())
    assert (values["image"]["repository"], values["image"]["tag"]) == (repository, tag)
    assert f'image: "{image}"' in template(chart)


def test_only_gpus_bring_tolerations() -> None:
    for facts, expected in ((vllm(Choices()), 1), (gateway(), 0)):
        values = yaml.safe_load(render_helm(facts)["llm-inference/values.yaml"])
        assert len(values["tolerations"]) == expected
