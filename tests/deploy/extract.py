"""What a rendered form would start: command, environment, mounts, configuration, probe paths, seconds to stop."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_inference.deploy.docker import render_docker
from tests.deploy.cases import fake
from tests.deploy.tools import run, tool


@dataclass(frozen=True, slots=True)
class Start:
    """`arguments` follow the program `llm-inference`; `config` is the file that they name by `config_path`."""

    arguments: list[str]
    config_path: str
    config: str
    secrets: list[str]
    ready_path: str
    live_path: str
    stop_s: float
    environment: dict[str, str]
    mounts: tuple[str, ...]  # where the form puts folders: configuration, cache, scratch


def from_docker(folder: Path) -> Start:
    text = (folder / "Dockerfile.cpu").read_text()
    entry = json.loads(re.findall(r"^ENTRYPOINT (\[.*\])$", text, flags=re.MULTILINE)[-1])
    command = json.loads(re.findall(r"^CMD (\[.*\])$", text, flags=re.MULTILINE)[-1])
    [live] = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", text.split("HEALTHCHECK")[1])
    assert entry == ["llm-inference"]
    assert "--env-file secrets.env" in text
    [stop] = re.findall(r"--stop-timeout (\d+)", text)
    config = (folder / "config" / "config.yaml").read_text()
    mounts = (*re.findall(r"-v \S+?:(/\w+)", text), *re.findall(r"--tmpfs (/\w+)", text))
    return Start(
        command,
        "/config/config.yaml",
        config,
        _names(folder / "secrets.env.example"),
        live,
        live,
        float(stop),
        image_environment(text),
        mounts,
    )


def image_environment(dockerfile: str) -> dict[str, str]:
    """ENV of the last stage, without PATH, which is the image's own."""
    [block] = re.findall(r"^ENV (PATH=(?:.|\\\n)*?[^\\])\n", dockerfile, flags=re.MULTILINE)
    found = dict(re.findall(r'(\w+)="?([^"\s]*)"?', block.replace("\\\n", " ")))
    del found["PATH"]
    return found


def from_compose(folder: Path) -> Start:
    service = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["server-cpu"]
    docker = from_docker(folder)
    [ready] = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", service["healthcheck"]["test"][-1])
    assert service["env_file"] == ["secrets.env"]
    assert "./config:/config:ro" in service["volumes"]
    stop = float(service["stop_grace_period"].removesuffix("s"))
    mounts = tuple(str(volume).split(":")[1] for volume in service["volumes"]) + tuple(service["tmpfs"])
    return dataclasses.replace(docker, ready_path=ready, live_path=ready, stop_s=stop, mounts=mounts)


def from_kubernetes(folder: Path) -> Start:
    documents = list(yaml.safe_load_all(run("kubectl", "kustomize", str(folder / "overlays" / "prod"))))
    secret = yaml.safe_load((folder / "secret.example.yaml").read_text())
    return _from_objects([*documents, secret])


def from_helm(folder: Path) -> Start:
    chart = folder / "llm-inference"
    documents = list(yaml.safe_load_all(run(tool("helm"), "template", "rel", str(chart))))
    names = re.findall(r"^#   (LLM_INFERENCE_\w+):", (chart / "values.yaml").read_text(), flags=re.MULTILINE)
    secret = {"kind": "Secret", "metadata": {"name": "llm-inference-secrets"}, "stringData": dict.fromkeys(names, "")}
    return _from_objects([*documents, secret])


def from_systemd(folder: Path) -> Start:
    unit = (folder / "llm-inference.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, flags=re.MULTILINE))
    program, *arguments = settings["ExecStart"].split()
    assert program == "/opt/llm-inference/bin/llm-inference"
    assert settings["EnvironmentFile"] == "/etc/llm-inference/secrets.env"
    config = (folder / "config.yaml").read_text()
    names = _names(folder / "secrets.env.example")
    path = "/etc/llm-inference/config.yaml"
    words = settings["Environment"].replace("%C", "/var/cache").split()
    environment = dict(word.split("=", 1) for word in words)
    mounts = ("/etc/llm-inference", f"/var/cache/{settings['CacheDirectory']}")
    stop = float(settings["TimeoutStopSec"])
    return Start(arguments, path, config, names, "/ready", "/health", stop, environment, mounts)


def _from_objects(documents: list[dict[str, Any]]) -> Start:
    def one(kind: str) -> dict[str, Any]:
        [found] = [document for document in documents if document["kind"] == kind]
        return found

    pod = one("Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    config = one("ConfigMap")
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    assert {"name": "config", "mountPath": "/config", "readOnly": True} in container["volumeMounts"]
    assert container["envFrom"] == [{"secretRef": {"name": one("Secret")["metadata"]["name"]}}]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes["startup"] == probes["readiness"]
    assert container["ports"][0]["name"] == one("Service")["spec"]["ports"][0]["targetPort"] == "http"
    stop = pod["terminationGracePeriodSeconds"] - int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    return Start(
        container["args"],
        "/config/config.yaml",
        config["data"]["config.yaml"],
        list(one("Secret")["stringData"]),
        probes["readiness"],
        probes["liveness"],
        float(stop),
        # The image is the one that the docker form builds.
        image_environment(render_docker(fake())["Dockerfile.cpu"]),
        tuple(mount["mountPath"] for mount in container["volumeMounts"]),
    )


def _names(example: Path) -> list[str]:
    return re.findall(r"^(\w+)=$", example.read_text(), flags=re.MULTILINE)


FORMS: dict[str, Callable[[Path], Start]] = {
    "docker": from_docker,
    "compose": from_compose,
    "kubernetes": from_kubernetes,
    "helm": from_helm,
    "systemd": from_systemd,
}
