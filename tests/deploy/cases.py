"""Deployments with fixed sizes, so that what is rendered depends on no model and no machine."""

from __future__ import annotations

import dataclasses

from pydantic import SecretStr

from llm_inference.config.admission import AdmissionConfig
from llm_inference.config.ray import RayConfig
from llm_inference.config.routing import RoutingConfig
from llm_inference.config.schema import ApiConfig, ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import DeploymentFacts, compute_facts
from llm_inference.deploy.needs import ModelNeeds

MIB = 2**20
GIB = 2**30

#: The default model, as `tools/footprint.py` measures it.
CPU_NEEDS = ModelNeeds(
    engine="native",
    place="cpu",
    engine_why="auto: it can serve the model",
    weight_bytes=651306240,
    kv_bytes=1 * GIB,
    least_kv_bytes=360 * MIB,
    workspace_bytes=44826624,
    download_bytes=92 * MIB,
    disk_bytes=630 * MIB,
    sizes_why="computing in float32: the checkpoint is float32",
)
#: Llama 3 8B, AWQ, by its shapes.
VLLM_NEEDS = ModelNeeds(
    engine="vllm",
    place="cuda",
    engine_why="auto: the native engine cannot load checkpoints quantized with awq",
    weight_bytes=5800 * MIB,
    least_kv_bytes=1 * GIB,
    download_bytes=5800 * MIB,
    disk_bytes=5800 * MIB,
)
REMOTE_NEEDS = ModelNeeds(engine="openai", place="remote", engine_why="it runs at `url`")
FAKE_NEEDS = ModelNeeds(engine="fake", place="cpu", engine_why="as configured")


def cpu(choices: Choices | None = None, **api: object) -> DeploymentFacts:
    """The default model on a CPU, with one key."""
    said = {"api_keys": (SecretStr("not-in-any-file"),), "shutdown_grace_s": 30.0} | api
    config = ServerConfig(api=ApiConfig(**said), models=(ModelConfig(kv_cache_memory=1 * GIB),))  # type: ignore[arg-type]
    return compute_facts(config, [CPU_NEEDS], choices or Choices(hostname="llm.example.org"))


def vllm(choices: Choices | None = None) -> DeploymentFacts:
    """An 8B model on one GPU."""
    model = ModelConfig(
        name="llama-3-8b",
        model="meta-llama/Meta-Llama-3-8B-Instruct",
        quantization="awq",
        max_model_len=8192,
    )
    config = ServerConfig(
        api=ApiConfig(api_keys=(SecretStr("not-in-any-file"),), shutdown_grace_s=60.0), models=(model,)
    )
    return compute_facts(config, [VLLM_NEEDS], choices or Choices(autoscaler="keda", hostname="llm.example.org"))


def gateway(choices: Choices | None = None) -> DeploymentFacts:
    """No model of our own: a gateway before a server that runs elsewhere, with shared limits and a ledger."""
    api = ApiConfig(
        api_keys=(SecretStr("not-in-any-file"),),
        limits_store="redis://:not-in-any-file@redis:6379/0",
        ledger="postgresql://llm:not-in-any-file@db/llm",
        workers=2,
        request_timeout_s=None,
    )
    model = ModelConfig(
        name="big",
        engine="openai",
        url="http://10.0.0.5:8001",
        api_key=SecretStr("not-in-any-file"),
        max_model_len=4096,
    )
    config = ServerConfig(api=api, models=(model,))
    return compute_facts(config, [REMOTE_NEEDS], choices or Choices(cache="per-pod", replicas=3, max_replicas=6))


def tiers(choices: Choices | None = None) -> DeploymentFacts:
    """Two tiers of the default model, compared by themselves: one golden replica, and two of int8."""
    routing = RoutingConfig.model_validate({"default_tier": "int8", "agreement": {"sample": 0.05, "threshold": 0.8}})
    golden = ModelConfig(tier="golden", precision="float32", kv_cache_memory=512 * MIB, routing=routing)
    int8 = ModelConfig(tier="int8", precision="int8", replicas=2, kv_cache_memory=512 * MIB)
    needs = [
        dataclasses.replace(CPU_NEEDS, kv_bytes=512 * MIB),
        dataclasses.replace(CPU_NEEDS, weight_bytes=246 * MIB, kv_bytes=512 * MIB, download_bytes=0, disk_bytes=0),
    ]
    api = ApiConfig(api_keys=(SecretStr("not-in-any-file"),))
    config = ServerConfig(api=api, admission=AdmissionConfig(max_queue_requests=32), models=(golden, int8))
    return compute_facts(config, needs, choices or Choices(scale_on="running", replicas=1, max_replicas=2))


def on_ray(choices: Choices | None = None) -> DeploymentFacts:
    """The default model in two to four replicas on Ray, and a model over two GPUs of one machine."""
    small = ModelConfig(kv_cache_memory=1 * GIB, ray=RayConfig(replicas=2, max_replicas=4)).on_ray()
    large = ModelConfig(name="large", model="org/large", engine="vllm", tensor_parallel_size=2).on_ray()
    config = ServerConfig(api=ApiConfig(api_keys=(SecretStr("not-in-any-file"),)), models=(small, large))
    return compute_facts(config, [CPU_NEEDS, VLLM_NEEDS], choices or Choices())


def nodes(choices: Choices | None = None) -> DeploymentFacts:
    """A model over two machines with eight GPUs each, behind an InferencePool."""
    model = ModelConfig(
        name="huge",
        model="org/huge",
        engine="vllm",
        tensor_parallel_size=16,
        engine_args={"env": {"NCCL_DEBUG": "WARN"}},
    )
    config = ServerConfig(api=ApiConfig(api_keys=(SecretStr("not-in-any-file"),)), models=(model,))
    need = dataclasses.replace(
        VLLM_NEEDS,
        engine_why="as configured",
        weight_bytes=400 * GIB,
        download_bytes=400 * GIB,
        disk_bytes=400 * GIB,
        worker_program="vllm",
        worker_flags=("--tensor-parallel-size", "16", "--enable-prefix-caching"),
    )
    said = choices or Choices(
        nodes=2, inference_pool=True, picker_image="picker:1", hostname="llm.example.org", autoscaler="none", replicas=1
    )
    return compute_facts(config, [need], said)


def fake(choices: Choices | None = None) -> DeploymentFacts:
    """Answers without a model, to be started for real."""
    api = ApiConfig(api_keys=(SecretStr("the-key"),), shutdown_grace_s=5.0)
    config = ServerConfig(api=api, models=(ModelConfig(name="echo", model="echo", engine="fake"),))
    return compute_facts(config, [FAKE_NEEDS], choices or Choices(hostname="llm.example.org"))


#: Every form that such a service has.
CASES = {"cpu": cpu, "vllm": vllm, "gateway": gateway, "tiers": tiers}
#: Those that one form alone is for.
SPECIAL = {"ray": on_ray, "nodes": nodes}
#: (case, target) of every golden folder.
GOLDEN = (
    *(("cpu", target) for target in ("docker", "compose", "kubernetes", "helm", "systemd", "nginx", "monitoring")),
    ("cpu", "ci"),
    *(("vllm", target) for target in ("docker", "kubernetes", "ci")),
    ("gateway", "kubernetes"),
    *(("tiers", target) for target in ("compose", "kubernetes", "systemd")),
    ("ray", "ray"),
    ("nodes", "kubernetes"),
)
