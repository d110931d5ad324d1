"""Ray Serve on Kubernetes by KubeRay's operator, and the same on machines of one's own.

    serve.yaml          the replicas as applications, for `serve deploy`; the RayService holds the same text
    rayservice.yaml     head, gateways (this package's server, a Ray node each), and a group of nodes for each model
    config.yaml         read by both: by the gateways, and by Ray when it makes the replicas
    kustomization.yaml  all of it: kubectl apply -k .

One replica fills one pod of its model's group: the pod's memory was computed for one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from llm_inference.config.ray import application_name
from llm_inference.config.schema import ModelConfig
from llm_inference.deploy import docker, pins
from llm_inference.deploy.config_file import deployed_config, engine_resource, num_gpus
from llm_inference.deploy.facts import CACHE_PATH, CONFIG_PATH, DeploymentFacts
from llm_inference.deploy.kubernetes import egress_ports, mebibytes
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.deploy.quoting import yaml_scalar
from llm_inference.deploy.sizing import (
    GIB,
    MIB,
    PROBE_PERIOD_S,
    ROUND_BYTES,
    SHARED_MEMORY_BYTES,
    Figure,
    gateway_bytes,
    host_bytes,
    show_bytes,
)
from llm_inference.deploy.templating import Raw, render
from llm_inference.errors import ConfigError

#: A raylet with its agents and workers. An estimate: on one machine, with head and two small replicas, it is 1.2 GB.
RAY_NODE_BYTES = 1 * GIB
#: The head: the cluster's store of state, the dashboard, Serve's controller. An estimate.
HEAD_BYTES = 4 * GIB
#: Replies are small: Ray's usual third of the memory would be taken from weights and cache.
OBJECT_STORE_BYTES = 256 * MIB
APPLICATION = "llm_inference.adapters.ray.application:build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The Ray nodes of one model: each has room for one replica. Sizes are bytes."""

    name: str
    application: str
    model: str
    replicas: int
    max_replicas: int
    cpus: int
    ray_cpus: int
    memory_bytes: int
    gpus: int
    resources: dict[str, float]
    revision: str

    @property
    def memory(self) -> str:
        return mebibytes(self.memory_bytes)

    @property
    def offered(self) -> str:
        """`--resources` of `ray start`, quoted for the shell that KubeRay puts it into."""
        inner = ", ".join(f'\\"{name}\\": {amount:g}' for name, amount in self.resources.items())
        return f'"{{{inner}}}"'


def render_ray(facts: DeploymentFacts) -> dict[str, str]:
    """Raises `ConfigError` where no model is to run on Ray, and for what several gateways cannot share."""
    facts.require_cluster("ray")
    found = groups(facts)
    if not found:
        raise ConfigError("ray: every model runs at a `url`, and there is nothing for a Ray cluster to do")
    if facts.mounts:
        raise ConfigError(
            f"{facts.mounts[0].source}: pods on many machines do not see this directory; name the model by a hub id or "
            "pypi:"
        )
    config = deployed_config(facts, "container")
    name = facts.choices.name
    values: dict[str, Any] = {
        "facts": facts,
        "name": name,
        "namespace": facts.choices.namespace,
        "groups": found,
        "scales": any(group.max_replicas > group.replicas for group in found),
        "secrets": config.secrets,
        "ray_version": pins.RAY_VERSION,
        "head_memory": mebibytes(HEAD_BYTES),
        "gateway_memory": mebibytes(gateway_memory(facts)),
        "gateway_cpus": facts.config.api.workers + 1,
        "object_store": OBJECT_STORE_BYTES,
        "shm": mebibytes(SHARED_MEMORY_BYTES),
        "cache_path": CACHE_PATH,
        "cache_size": f"{facts.cache_bytes // GIB}Gi",
        "config_path": CONFIG_PATH,
        "application": APPLICATION,
        "period_s": PROBE_PERIOD_S,
        "egress_ports": egress_ports(facts),
    }

    def text(file: str, **more: Any) -> str:
        return render(f"ray/{file}.j2", yaml_scalar, **values, **more)

    applications = text("serve.yaml")
    bare = "".join(line + "\n" for line in applications.splitlines() if not line.startswith("#"))
    files = {
        "config.yaml": config.text(),
        "serve.yaml": applications,
        "rayservice.yaml": text("rayservice.yaml", applications=Raw(bare)),
        "gateway.yaml": text("gateway.yaml"),
        "names.yaml": _NAMES,
        "kustomization.yaml": text("kustomization.yaml"),
    }
    if config.secrets:
        files["secret.example.yaml"] = render("kubernetes/secret.yaml.j2", yaml_scalar, **values)
    files |= {f"image/{path}": content for path, content in docker.build_files(facts).items()}
    return dict(sorted(files.items()))


def groups(facts: DeploymentFacts) -> list[Group]:
    """One for each model that runs on Ray, in the order of the configuration."""
    both = zip(facts.config.models, facts.needs, strict=True)
    return [_group(index, model, need, facts) for index, (model, need) in enumerate(both) if model.engine == "ray"]


def ray_figures(facts: DeploymentFacts) -> tuple[Figure, ...]:
    """The numbers of the pods, which are no service as a whole: those of `facts` that hold here, and each group's."""
    here = ("engine of", "limits", "port", "pre-stop", "drain", "grace", "load time", "start-up limit", "cache volume")
    kept = [figure for figure in facts.figures if figure.name.startswith(here)]
    node = f"a Ray node {show_bytes(RAY_NODE_BYTES)}, its object store {show_bytes(OBJECT_STORE_BYTES)}"
    memory = show_bytes(gateway_memory(facts))
    pods = [
        Figure("head", show_bytes(HEAD_BYTES), "an estimate: the cluster's state, dashboard, Serve's controller"),
        Figure("gateway pods", memory, f"gateway {show_bytes(gateway_bytes(facts.config))}, {node}"),
    ]
    for group in groups(facts):
        what = f"{group.model}: one replica, {node}; {group.cpus} CPUs, {group.gpus} GPUs"
        pods.append(Figure(f"{group.name} pods", show_bytes(group.memory_bytes), what))
    return (*kept, *pods)


def gateway_memory(facts: DeploymentFacts) -> int:
    return _rounded(gateway_bytes(facts.config) + RAY_NODE_BYTES + OBJECT_STORE_BYTES)


def _group(index: int, model: ModelConfig, need: ModelNeeds, facts: DeploymentFacts) -> Group:
    wants, gpus = model.ray, num_gpus(model, need)
    cpus = facts.choices.cpus or (max(2 * gpus, 2) if gpus else max(math.ceil(wants.num_cpus), 4))
    memory = host_bytes(model, need) + RAY_NODE_BYTES + OBJECT_STORE_BYTES
    told = f"{facts.choices.image} {model.model_dump_json()} {need}"
    return Group(
        name=engine_resource(index),
        application=application_name(model.ray.app_prefix, model.deployment),
        model=model.deployment,
        replicas=wants.replicas,
        max_replicas=max(wants.max_replicas or 0, wants.replicas),
        cpus=cpus,
        ray_cpus=max(math.ceil(wants.num_cpus), 1),
        memory_bytes=_rounded(memory),
        gpus=gpus,
        resources={engine_resource(index): 1, **wants.resources},
        revision=hashlib.sha256(told.encode()).hexdigest()[:12],
    )


def _rounded(num_bytes: int) -> int:
    return math.ceil(num_bytes / ROUND_BYTES) * ROUND_BYTES


#: Kustomize knows where Kubernetes' own kinds name a ConfigMap, and must be told it of others.
_NAMES = """\
nameReference:
  - kind: ConfigMap
    version: v1
    fieldSpecs:
      - {kind: RayService, path: spec/rayClusterConfig/headGroupSpec/template/spec/volumes/configMap/name}
      - {kind: RayService, path: spec/rayClusterConfig/workerGroupSpecs/template/spec/volumes/configMap/name}
"""
