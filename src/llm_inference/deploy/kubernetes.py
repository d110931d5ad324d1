"""Kubernetes manifests as a kustomize base, optional components, and the overlays dev and prod.

secret.example.yaml     filled in and applied by hand, outside of the base, so that no `apply` ever empties it
base/                   namespace, configuration, volume, Deployment, Service, NetworkPolicy
components/             what a cluster may lack the operators for, or what only production wants
overlays/{dev,prod}     kubectl apply -k overlays/prod
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from llm_inference.deploy import monitoring, multi_node
from llm_inference.deploy.config_file import deployed_config
from llm_inference.deploy.facts import CACHE_PATH, MODELS_PATH, DeploymentFacts
from llm_inference.deploy.quoting import yaml_scalar
from llm_inference.deploy.sizing import GIB, MIB, PROBE_PERIOD_S, SHARED_MEMORY_BYTES
from llm_inference.deploy.templating import Raw, render
from llm_inference.errors import ConfigError

_BASE = ("namespace", "service", "networkpolicy")
_OPTIONAL = ("pdb", "hpa", "keda")
#: Sequences that run at once where the configuration does not say: the native engine's defaults,
#: and a guess for servers elsewhere.
_SEQUENCES = {"cpu": 64, "cuda": 256, "remote": 64}
WAITING_PER_POD = 5
_DEFAULT_PORTS = {
    "https": 443,
    "http": 80,
    "grpc": 80,
    "redis": 6379,
    "rediss": 6379,
    "postgresql": 5432,
    "postgres": 5432,
}


@dataclass(frozen=True, slots=True)
class Scaling:
    """The metric of the HPA. `kind`: "pods" (custom metrics API) or "resource"."""

    kind: str
    metric: str
    target: int
    why: str


def render_kubernetes(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` for what no container can do, and for a route without keys."""
    facts.require_cluster("kubernetes")
    config = deployed_config(facts, "container")
    values = _values(facts)
    several_nodes = facts.choices.nodes > 1

    def text(name: str, **more: Any) -> str:
        return render(f"kubernetes/{name}.yaml.j2", yaml_scalar, **values, **more)

    files = {f"base/{name}.yaml": text(name) for name in _BASE}
    pod = Raw(text("pod"))
    if several_nodes:
        multi_node.refuse_secrets(config.secrets)
        more = {"worker_command": multi_node.worker_command(facts), "worker_env": multi_node.worker_env(facts)}
        worker = Raw(text("worker", **more))
        files["base/leaderworkerset.yaml"] = text("leaderworkerset", pod=pod, worker=worker)
    else:
        files["base/deployment.yaml"] = text("deployment", pod=pod)
    files["base/config.yaml"] = config.text()
    if (facts.choices.cache == "shared" and facts.fetches) or facts.mounts:
        files["base/volumes.yaml"] = text("volumes")
    files["base/kustomization.yaml"] = text("base", resources=sorted(_resources(files)))
    if several_nodes:
        files["base/names.yaml"] = multi_node.NAMES
    for name in _OPTIONAL:
        files |= _component(name, text(name))
    files["components/hpa/prometheus-adapter.values.yaml"] = text("adapter")
    files |= _component("monitoring", text("monitoring", rules=Raw(monitoring.rules(facts.config.telemetry.alerts))))
    files |= monitoring.dashboard_files("components/monitoring/dashboards")
    if facts.choices.hostname is not None:
        facts.require_keys("--hostname")
        if not facts.config.api.api_prefix:
            raise ConfigError("--hostname: api.api_prefix is empty, so a route could not leave /metrics out; set /v1")
        files |= _component("ingress", text("ingress"))
        files |= _component("gateway", text("gateway"))
    if facts.choices.inference_pool:
        _refuse_pool(facts)
        files |= _component("inference-pool", text("pool"))
    if config.secrets:
        files["secret.example.yaml"] = text("secret")
    files["overlays/dev/kustomization.yaml"] = text("overlay_dev")
    files["overlays/prod/kustomization.yaml"] = text("overlay_prod")
    return dict(sorted(files.items()))


def mebibytes(num_bytes: int) -> str:
    """A quantity of Kubernetes, rounded down to what was really promised."""
    return f"{num_bytes // MIB}Mi"


def scaling(facts: DeploymentFacts) -> Scaling:
    """Raises `ConfigError` for a signal that this deployment does not have."""
    wanted = facts.choices.scale_on
    if wanted == "waiting":
        return Scaling(
            "pods",
            "llm_inference_num_requests_waiting",
            WAITING_PER_POD,
            "a queue is the one sign that a pod has more than it can batch; CPU and GPU are busy at any load, and "
            "memory is reserved at the start",
        )
    if wanted == "running":
        seats = min(
            model.max_num_seqs or _SEQUENCES[need.place]
            for model, need in zip(facts.config.models, facts.needs, strict=True)
        )
        why = f"eight tenths of the {seats} sequences that run at once: scales before anybody waits"
        return Scaling("pods", "llm_inference_num_requests_running", max(seats * 8 // 10, 1), why)
    if wanted == "gpu":
        if not facts.gpus:
            raise ConfigError("--scale-on gpu: no model computes on a GPU; use waiting or running")
        why = "share of time in which any kernel ran; near 100 at any load, so waiting is the better signal"
        return Scaling("pods", "DCGM_FI_DEV_GPU_UTIL", 80, why)
    why = {
        "cpu": "near its quota at any load, so waiting is the better signal",
        "memory": "the KV cache is reserved and never given back, so this scales up once and never down; waiting is "
        "the better signal",
    }[wanted]
    return Scaling("resource", wanted, 80, why)


def _values(facts: DeploymentFacts) -> dict[str, Any]:
    api = facts.config.api
    timeout = math.ceil(api.request_timeout_s) + 30 if api.request_timeout_s is not None else None
    return {
        "facts": facts,
        "name": facts.choices.name,
        "namespace": facts.choices.namespace,
        "memory": mebibytes(facts.memory_bytes),
        "shm": mebibytes(SHARED_MEMORY_BYTES) if facts.gpus else None,
        "cache_size": f"{facts.cache_bytes // GIB}Gi",
        "cache_path": CACHE_PATH,
        "models_path": MODELS_PATH,
        "models_size": f"{max(math.ceil(sum(need.disk_bytes for need in facts.needs) * 1.2 / GIB), 1)}Gi",
        "shared_cache": facts.choices.cache == "shared" and facts.fetches,
        "several": facts.choices.max_replicas > 1,
        "nodes": facts.choices.nodes,
        "workload": _workload(facts),
        "period_s": PROBE_PERIOD_S,
        "secrets": deployed_config(facts, "container").secrets,
        "scaling": scaling(facts),
        "waiting": WAITING_PER_POD,
        "egress_ports": egress_ports(facts),
        "timeout_s": timeout,
        "prefix": api.api_prefix or "/",
    }


def _workload(facts: DeploymentFacts) -> dict[str, str]:
    """What an autoscaler scales."""
    if facts.choices.nodes > 1:
        return {"api": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    return {"api": "apps/v1", "kind": "Deployment"}


def _refuse_pool(facts: DeploymentFacts) -> None:
    facts.require_keys("--inference-pool")
    if not facts.config.api.api_prefix:
        raise ConfigError("--inference-pool: api.api_prefix is empty, so a route could not leave /metrics out; set /v1")
    if not facts.config.api.open_metrics:
        raise ConfigError("--inference-pool: the endpoint picker reads /metrics without a key; set api.open_metrics")


def egress_ports(facts: DeploymentFacts) -> list[int]:
    """Ports that the service calls: the hub or package index, servers at `url`, databases."""
    api = facts.config.api
    addresses = [model.url for model in facts.config.models] + [api.limits_store, api.ledger, api.key_store]
    ports = {443} if facts.fetches else set()
    for address in " ".join(filter(None, addresses)).replace(",", " ").split():
        parts = urlsplit(address)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        if port is not None:
            ports.add(port)
    return sorted(ports)


def _resources(files: dict[str, str]) -> list[str]:
    no_objects = ("base/config.yaml", "base/names.yaml")
    return [path.removeprefix("base/") for path in files if path not in no_objects]


def _component(name: str, text: str) -> dict[str, str]:
    kustomization = (
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
        + f"resources: [{yaml_scalar(name + '.yaml')}]\n"
    )
    return {f"components/{name}/{name}.yaml": text, f"components/{name}/kustomization.yaml": kustomization}
