"""`DeploymentFacts`: everything that the renderers know, computed once, each number with its reason."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llm_inference.config.schema import ServerConfig
from llm_inference.deploy import multi_node, sizing
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.deploy.pins import ENGINE_PACKAGES
from llm_inference.deploy.sizing import Figure, Times
from llm_inference.errors import ConfigError

#: Where things are in a container.
CONFIG_PATH = "/config/config.yaml"
CACHE_PATH = "/cache"
MODELS_PATH = "/models"
CONTAINER_PORT = 8000
#: Engines inside our own package; they need nothing installed.
OWN_ENGINES = ("native", "fake")


@dataclass(frozen=True, slots=True)
class Mount:
    """A model on this machine and where a container finds it."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """`config` is as loaded; what is written of it is `config_file.py`'s business. Sizes are bytes."""

    config: ServerConfig
    needs: tuple[ModelNeeds, ...]
    choices: Choices
    memory_bytes: int
    cpus: int
    gpus: int
    cache_bytes: int
    times: Times
    mounts: tuple[Mount, ...]
    figures: tuple[Figure, ...]

    @property
    def port(self) -> int:
        """The port in a container."""
        return self.config.api.port or CONTAINER_PORT

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines that are no part of our package and run beside it, each once."""
        names = (need.engine for need in self.needs if need.place != "remote" and need.engine not in OWN_ENGINES)
        return tuple(dict.fromkeys(names))

    @property
    def fetches(self) -> bool:
        """Whether a model is downloaded at the first start."""
        return any(need.place != "remote" and need.local_path is None for need in self.needs)

    @property
    def on_ray(self) -> bool:
        """Whether some engine runs in replicas on a Ray cluster."""
        return any(model.engine == "ray" for model in self.config.models)

    @property
    def has_keys(self) -> bool:
        """Whether callers must send a key."""
        api = self.config.api
        return bool(api.api_keys or api.keys or api.key_store)

    def require_cluster(self, target: str) -> None:
        """As `require_container`, and for what several pods cannot share."""
        self.require_container(target)
        if self.choices.cpu_set:
            raise ConfigError(
                f"--cpu-set: in {target} the kubelet chooses the CPUs; where its CPU manager is `static` those of a "
                "pod are its own, since they are whole: say how many with --cpus"
            )
        if self.choices.nodes > 1 and target != "kubernetes":
            raise ConfigError(f"--nodes: {target} has no form for a model over several machines; use kubernetes")
        if self.choices.max_replicas > 1:
            for key in ("key_store", "ledger"):
                if (getattr(self.config.api, key) or "").startswith("sqlite"):
                    raise ConfigError(
                        f"api.{key}: sqlite is a file for one gateway, and up to {self.choices.max_replicas} pods are "
                        "to run; use postgresql://…, or --max-replicas 1 --replicas 1"
                    )

    def require_container(self, target: str) -> None:
        """Raises `ConfigError` for what no container of ours can do."""
        if self.on_ray and target != "ray":
            raise ConfigError(f"engine: ray: {target} makes no Ray cluster; use `deploy ray`")
        if self.config.api.uds is not None:
            raise ConfigError(f"api.uds: nobody outside a container reaches its Unix socket; leave it out for {target}")
        for model, need in zip(self.config.models, self.needs, strict=True):
            if model.url is not None and re.search(r"//([^/@]*@)?(localhost|127\.|\[::1\])", model.url):
                raise ConfigError(
                    f"{model.name}: url: inside a container {model.url.rpartition('@')[2]} is the container itself; "
                    "name the server by an address that others reach"
                )
            if need.place == "cpu" and need.engine not in OWN_ENGINES:
                raise ConfigError(
                    f"{model.name}: {need.engine} on a CPU has no place in our image, which holds the native engine "
                    "alone; run it as a service of its own and give its `url`"
                )
        for engine in self.engines:
            if engine not in ENGINE_PACKAGES:
                raise ConfigError(
                    f"engine: {engine!r} has no place in our image, which holds {', '.join(ENGINE_PACKAGES)} beside "
                    f"the native engine; run it as a service of its own and give its `url`"
                )

    def require_keys(self, what: str) -> None:
        """Raises `ConfigError` where the world would be let in without a key."""
        if not self.has_keys:
            raise ConfigError(
                f"{what}: the configuration has no keys, so everybody who reaches it could use the service; "
                'set api_keys: ["${API_KEY}"]'
            )


def compute_facts(config: ServerConfig, needs: Sequence[ModelNeeds], choices: Choices) -> DeploymentFacts:
    """`needs` are in the order of `config.models`. Raises `ConfigError` for combinations that cannot work."""
    _refuse_impossible(config, needs)
    multi_node.refuse_impossible(config, needs, choices.nodes)
    memory_bytes, memory = sizing.memory(config, needs, choices)
    num_gpus, gpus = sizing.gpus(config, needs, choices)
    num_cpus, cpus = sizing.cpus(config, needs, choices)
    cache_bytes, cache = sizing.disk(needs)
    times, of_time = sizing.times(config, needs, choices)
    port = config.api.port or CONTAINER_PORT
    engines = [
        Figure(f"engine of {model.deployment}", need.engine, "; ".join(filter(None, (need.engine_why, need.sizes_why))))
        for model, need in zip(config.models, needs, strict=True)
    ]
    return DeploymentFacts(
        config=config,
        needs=tuple(needs),
        choices=choices,
        memory_bytes=memory_bytes,
        cpus=num_cpus,
        gpus=num_gpus,
        cache_bytes=cache_bytes,
        times=times,
        mounts=_mounts(config, needs),
        figures=(
            *engines,
            memory,
            Figure("memory request", "= limit", "the KV cache is reserved at the start: less would be killed later"),
            cpus,
            gpus,
            cache,
            *_notes(config, choices),
            Figure("port", str(port), "api.port" if config.api.port else "api.port is 0, which probes cannot find"),
            *of_time,
        ),
    )


def _refuse_impossible(config: ServerConfig, needs: Sequence[ModelNeeds]) -> None:
    for model, need in zip(config.models, needs, strict=True):
        if need.place == "cpu" and model.tensor_parallel_size > 1:
            raise ConfigError(
                f"{model.name}: tensor_parallel_size is {model.tensor_parallel_size}, but the model computes on a CPU"
            )
        if need.engine == "native" and model.tensor_parallel_size > 1:
            raise ConfigError(f"{model.name}: the native engine runs a model on one GPU; choose `engine: vllm`")
    if config.api.port and config.api.port < 1024:
        raise ConfigError(
            f"api.port: {config.api.port} needs root, and the service runs without; use 8000 here and map the port"
        )


def _notes(config: ServerConfig, choices: Choices) -> list[Figure]:
    """What several pods make different: counters in memory are each pod's own."""
    api = config.api
    limited = [api.key_limits, api.address_limits, *(key.limits for key in api.keys)]
    limited += [model.limits for model in config.models]
    if api.limits_store is None and choices.max_replicas > 1 and any(limits.model_fields_set for limits in limited):
        why = f"counted in memory, so up to {choices.max_replicas} pods allow that many times as much; set limits_store"
        return [Figure("limits", "per pod", why)]
    return []


def _mounts(config: ServerConfig, needs: Sequence[ModelNeeds]) -> tuple[Mount, ...]:
    mounts: list[Mount] = []
    for index, need in enumerate(needs):
        if need.local_path is not None:
            # The number keeps two models apart whose directories have the same name.
            name = posixpath.basename(need.local_path.rstrip("/"))
            mounts.append(Mount(need.local_path, f"{MODELS_PATH}/{index}/{name}"))
    return tuple(mounts)
