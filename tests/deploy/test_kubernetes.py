"""Manifests against the API's own schemas, kustomize, and what they must say."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import DeploymentFacts, compute_facts
from llm_inference.deploy.kubernetes import mebibytes, render_kubernetes, scaling
from llm_inference.errors import ConfigError
from tests.deploy.cases import CASES, CPU_NEEDS, FAKE_NEEDS, cpu, gateway, vllm
from tests.deploy.test_quoting import HOSTILE
from tests.deploy.tools import node_modules, run, tool

OVERLAYS = ("dev", "prod")
#: Kind → the class of the npm packages that knows its schema.
CUSTOM = {
    "ScaledObject": "keda/keda.sh/v1alpha1/ScaledObject.js",
    "HTTPRoute": "gateway-api/gateway.networking.k8s.io/v1/HTTPRoute.js",
    "ServiceMonitor": "prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor.js",
    "PrometheusRule": "prometheus-operator/monitoring.coreos.com/v1/PrometheusRule.js",
}
CHECK = """
const documents = JSON.parse(require('fs').readFileSync(0, 'utf8'));
(async () => {
  for (const document of documents) {
    const module = await import(process.argv[1] + '/@kubernetes-models/' + document.schema);
    const Kind = module[document.object.kind] ?? module.default[document.object.kind];
    new Kind(document.object).validate();
  }
})().catch((error) => { console.error(error.message); process.exit(1); });
"""


def kustomized(facts: DeploymentFacts, overlay: str, folder: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(folder / "overlays" / overlay))))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_are_what_the_api_accepts(case: str, overlay: str, written: Any) -> None:
    folder = written(render_kubernetes(CASES[case]()))
    objects = kustomized(CASES[case](), overlay, folder)
    known = [one for one in objects if one["kind"] not in CUSTOM]
    file = folder / "all.yaml"
    file.write_text(yaml.safe_dump_all(known))
    run(tool("kubernetes-validate"), "-k", "1.29", "--strict", str(file))
    run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))
    assert {"Namespace", "ConfigMap", "Deployment", "Service", "NetworkPolicy"} <= {one["kind"] for one in known}


@pytest.mark.parametrize("case", ["cpu", "vllm"])
def test_every_component_and_the_secret_are_what_the_api_accepts(case: str, written: Any) -> None:
    folder = written(render_kubernetes(CASES[case]()))
    files = [folder / "secret.example.yaml", *folder.glob("components/*/*.yaml")]
    objects = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    builtin = [one for one in objects if one.get("kind") in ("Secret", "PodDisruptionBudget", "Ingress")]
    builtin += [one for one in objects if one.get("kind") == "HorizontalPodAutoscaler"]
    assert len(builtin) == 4
    file = folder / "all.yaml"
    file.write_text(yaml.safe_dump_all(builtin))
    run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))
    custom = [one for one in objects if one.get("kind") in CUSTOM]
    assert {one["kind"] for one in custom} == set(CUSTOM)
    check_custom(custom)


def check_custom(objects: list[dict[str, Any]]) -> None:
    """Raises `AssertionError` unless the operators' own schemas accept them."""
    modules = node_modules()
    documents = [{"schema": CUSTOM[one["kind"]], "object": one} for one in objects]
    run(tool("node"), "-e", CHECK, str(modules.resolve()), stdin=json.dumps(documents))


@pytest.mark.parametrize("kind", CUSTOM)
def test_the_schemas_are_really_asked(kind: str) -> None:
    with pytest.raises(AssertionError, match="must"):
        check_custom([{"apiVersion": "wrong/v1", "kind": kind, "metadata": {"name": "x"}, "spec": {"triggers": 5}}])


def deployment(files: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files["base/deployment.yaml"])
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_pod_is_held_to_its_numbers(case: str) -> None:
    facts = CASES[case]()
    spec = deployment(render_kubernetes(facts))["spec"]["template"]["spec"]
    [container] = spec["containers"]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["memory"] == mebibytes(facts.memory_bytes)
    assert resources["limits"]["cpu"] == str(facts.cpus)
    assert resources["limits"].get("nvidia.com/gpu") == (str(facts.gpus) if facts.gpus else None)
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 3 * facts.times.load_s - 15
    pre_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > pre_stop + facts.config.api.shutdown_grace_s


@pytest.mark.parametrize("case", CASES)
def test_the_pod_may_do_nothing_that_it_need_not(case: str) -> None:
    spec = deployment(render_kubernetes(CASES[case]()))["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/config", "/cache", "/tmp"} <= mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_a_changed_configuration_rolls_out(written: Any) -> None:
    def name(facts: DeploymentFacts) -> str:
        [found] = [
            one for one in kustomized(facts, "dev", written(render_kubernetes(facts))) if one["kind"] == "ConfigMap"
        ]
        return str(found["metadata"]["name"])

    first = name(cpu())
    assert first.startswith("llm-inference-config-")
    from llm_inference.deploy.output import write

    folder = written({})
    write(render_kubernetes(cpu(max_concurrent_requests=7)), folder, force=True)
    [found] = [one for one in kustomized(cpu(), "dev", folder) if one["kind"] == "ConfigMap"]
    assert found["metadata"]["name"] != first


def test_overlays_differ_where_they_should(written: Any) -> None:
    folder = written(render_kubernetes(cpu()))
    dev, prod = (kustomized(cpu(), overlay, folder) for overlay in OVERLAYS)
    by_kind = {one["kind"]: one for one in prod}
    assert {"HorizontalPodAutoscaler", "PodDisruptionBudget", "ServiceMonitor", "PrometheusRule", "Ingress"} <= set(
        by_kind
    )
    assert by_kind["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "replicas" not in by_kind["Deployment"]["spec"]
    assert {one["metadata"].get("namespace", one["metadata"]["name"]) for one in dev} == {"llm-inference-dev"}
    [dev_deployment] = [one for one in dev if one["kind"] == "Deployment"]
    assert dev_deployment["spec"]["replicas"] == 1


def test_without_an_autoscaler_the_overlay_says_how_many(written: Any) -> None:
    facts = cpu(Choices(autoscaler="none", replicas=3))
    objects = kustomized(facts, "prod", written(render_kubernetes(facts)))
    [found] = [one for one in objects if one["kind"] == "Deployment"]
    assert found["spec"]["replicas"] == 3
    assert "HorizontalPodAutoscaler" not in {one["kind"] for one in objects}


def test_one_autoscaler_at_a_time(written: Any) -> None:
    kinds = {one["kind"] for one in kustomized(vllm(), "prod", written(render_kubernetes(vllm())))}
    assert "ScaledObject" in kinds
    assert "HorizontalPodAutoscaler" not in kinds


def test_keda_scales_to_nothing_and_is_woken_by_what_stays() -> None:
    choices = Choices(autoscaler="keda", replicas=0, hostname="example.org")
    scaled = yaml.safe_load(render_kubernetes(cpu(choices))["components/keda/keda.yaml"])
    check_custom([scaled])
    assert scaled["spec"]["minReplicaCount"] == 0
    waiting, rate = (trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])
    assert "num_requests_waiting" in waiting
    assert 'ingress="llm-inference"' in rate, "while no pod is there nobody counts waiting requests"
    [kept] = yaml.safe_load(render_kubernetes(vllm())["components/keda/keda.yaml"])["spec"]["triggers"]
    assert "num_requests_waiting" in kept["metadata"]["query"]


@pytest.mark.parametrize(
    ("choices", "kind", "metric", "target"),
    [
        (Choices(), "pods", "llm_inference_num_requests_waiting", 5),
        (Choices(scale_on="running"), "pods", "llm_inference_num_requests_running", 51),
        (Choices(scale_on="cpu"), "resource", "cpu", 80),
        (Choices(scale_on="memory"), "resource", "memory", 80),
    ],
)
def test_signals(choices: Choices, kind: str, metric: str, target: int, written: Any) -> None:
    found = scaling(cpu(choices))
    assert (found.kind, found.metric, found.target) == (kind, metric, target)
    folder = written(render_kubernetes(cpu(choices)))
    file = folder / "components" / "hpa" / "hpa.yaml"
    run(tool("kubernetes-validate"), "-k", "1.33", "--strict", str(file))
    assert metric in file.read_text()


def test_a_gpu_signal_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="--scale-on gpu: no model computes on a GPU"):
        render_kubernetes(cpu(Choices(scale_on="gpu")))
    assert scaling(vllm(Choices(scale_on="gpu"))).metric == "DCGM_FI_DEV_GPU_UTIL"


def test_routes_do_not_hold_streams_back() -> None:
    files = render_kubernetes(cpu())
    notes = yaml.safe_load(files["components/ingress/ingress.yaml"])["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    assert notes[prefix + "proxy-buffering"] == "off"
    assert int(notes[prefix + "proxy-read-timeout"]) > cpu().config.api.request_timeout_s
    assert int(notes[prefix + "proxy-body-size"]) == cpu().config.api.max_body_bytes
    [rule] = yaml.safe_load(files["components/gateway/gateway.yaml"])["spec"]["rules"]
    assert rule["timeouts"]["request"] == "630s"
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]


@pytest.mark.parametrize(
    ("api", "message"),
    [({"api_keys": ()}, "--hostname: the configuration has no keys"), ({"api_prefix": ""}, "api_prefix is empty")],
)
def test_no_route_to_an_open_service(api: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        render_kubernetes(cpu(**api))


def test_the_network_policy_lets_out_what_is_needed() -> None:
    def ports(facts: DeploymentFacts) -> list[int]:
        egress = yaml.safe_load(render_kubernetes(facts)["base/networkpolicy.yaml"])["spec"]["egress"]
        return [port["port"] for rule in egress for port in rule["ports"]]

    assert ports(cpu()) == [53, 53, 443]
    assert ports(gateway()) == [53, 53, 5432, 6379, 8001]


def test_models_that_are_files_have_a_volume() -> None:
    need = dataclasses.replace(CPU_NEEDS, local_path="/srv/m", download_bytes=0)
    config = ServerConfig(models=(ModelConfig(model="/srv/m"),))
    files = render_kubernetes(compute_facts(config, [need], Choices()))
    [claim] = [one for one in yaml.safe_load_all(files["base/volumes.yaml"]) if one]
    assert claim["metadata"]["name"] == "llm-inference-models"
    assert "#   /srv/m  ->  /models/0/m" in files["base/volumes.yaml"]
    spec = deployment(files)["spec"]["template"]["spec"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in spec["containers"][0]["volumeMounts"]


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    config = ServerConfig(models=(ModelConfig(name="x", model="m", engine="fake"),))
    return render_kubernetes(compute_facts(config, [FAKE_NEEDS], Choices()))


@pytest.mark.parametrize("name", [text for text in HOSTILE if text])
def test_hostile_names_change_no_object(name: str, plain: dict[str, str]) -> None:
    config = ServerConfig(models=(ModelConfig(name=name, model="m", engine="fake"),))
    files = render_kubernetes(compute_facts(config, [FAKE_NEEDS], Choices()))
    assert {path for path in files if files[path] != plain[path]} == {"base/config.yaml"}
    [model] = yaml.safe_load(files["base/config.yaml"])["models"]
    assert model["name"] == name.replace("${", "$${")


def test_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    before = render_kubernetes(cpu())
    for variable in list(os.environ):
        monkeypatch.delenv(variable)
    assert render_kubernetes(cpu()) == before
