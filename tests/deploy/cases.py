"""Three deployments with fixed sizes, so that what is rendered depends on no model and no machine."""

from __future__ import annotations

from pydantic import SecretStr

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


def fake(choices: Choices | None = None) -> DeploymentFacts:
    """Answers without a model, to be started for real."""
    api = ApiConfig(api_keys=(SecretStr("the-key"),), shutdown_grace_s=5.0)
    config = ServerConfig(api=api, models=(ModelConfig(name="echo", model="echo", engine="fake"),))
    return compute_facts(config, [FAKE_NEEDS], choices or Choices(hostname="llm.example.org"))


CASES = {"cpu": cpu, "vllm": vllm, "gateway": gateway}
#: (case, target) of every golden folder.
GOLDEN = (
    *(("cpu", target) for target in ("docker", "compose", "kubernetes", "helm", "systemd", "nginx", "monitoring")),
    *(("vllm", target) for target in ("docker", "kubernetes")),
    ("gateway", "kubernetes"),
)
