"""The arithmetic of a deployment: memory, CPUs, GPUs, disk and times, each with the reason for it.

Pure. What is measured says so where the constant stands; what is an estimate is called one in the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.errors import ConfigError

MIB = 2**20
GIB = 2**30

#: One gateway process: a test of the project asserts that it stays below this with the default model.
GATEWAY_BYTES = 250 * MIB
#: A native core beside weights, cache and workspace: torch and the interpreter. Measured with the default model.
CORE_BYTES = 450 * MIB
#: The process that checks grammars of requests.
GRAMMAR_GUARD_BYTES = 70 * MIB
#: Host memory of one process that drives a GPU: CUDA context, libraries, staging buffers. An estimate.
GPU_PROCESS_BYTES = 4 * GIB
#: Shared memory by which the processes of tensor parallelism talk. An estimate.
SHARED_MEMORY_BYTES = 2 * GIB
ROUND_BYTES = 256 * MIB

#: For estimates of the first start.
DOWNLOAD_BYTES_PER_S = 25 * 10**6
READ_BYTES_PER_S = 200 * 10**6
START_S = {"native": 15, "fake": 1}
OTHER_START_S = 180
LOAD_SPARE = 3
PROBE_PERIOD_S = 5

#: Until no balancer sends new requests any more, after Kubernetes has taken the pod out of the Service.
PRE_STOP_S = 5
#: Workers get 2 s and engines 1 s beyond the drain, then they are killed; the rest is spare.
TEARDOWN_S = 15


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of `--explain`. `shown` is the number with its unit."""

    name: str
    shown: str
    why: str


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. `grace_s` is above `pre_stop_s` + `drain_s`."""

    load_s: int
    startup_s: int
    pre_stop_s: int
    drain_s: int
    grace_s: int

    @property
    def startup_failures(self) -> int:
        return math.ceil(self.startup_s / PROBE_PERIOD_S)


def show_bytes(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes / MIB:.0f} MiB"


def memory(config: ServerConfig, needs: Sequence[ModelNeeds], choices: Choices) -> tuple[int, Figure]:
    """Host memory that the service may use. Raises `ConfigError` when the chosen limit is below what it needs."""
    parts = [f"gateway {show_bytes(gateway_bytes(config))}"]
    total = gateway_bytes(config)
    for model, need in zip(config.models, needs, strict=True):
        own = math.ceil(host_bytes(model, need) / choices.nodes)
        total += own
        if need.place == "cpu":
            whole = f"(weights {show_bytes(need.weight_bytes)} + KV cache {show_bytes(need.kv_bytes)} + workspace "
            whole += (
                f"{show_bytes(need.workspace_bytes)}) / {model.gpu_memory_utilization:g} + {show_bytes(CORE_BYTES)}"
            )
            parts.append(f"{_times(model)}{model.deployment}: {whole} for torch")
        elif need.place == "cuda":
            parts.append(
                f"{model.deployment}: {show_bytes(own)}, an estimate for processes that drive GPUs and for loading"
            )
    rounded = math.ceil(total / ROUND_BYTES) * ROUND_BYTES
    if choices.memory_bytes is not None:
        if choices.memory_bytes < total:
            raise ConfigError(
                f"--memory is {show_bytes(choices.memory_bytes)}, but the service needs: {'; '.join(parts)}"
            )
        return choices.memory_bytes, Figure("memory", show_bytes(choices.memory_bytes), "--memory")
    return rounded, Figure("memory", show_bytes(rounded), "; ".join(parts))


def gateway_bytes(config: ServerConfig) -> int:
    """Several workers are children of a parent that serves nothing itself but is as large."""
    workers = config.api.workers
    return (workers if workers == 1 else workers + 1) * GATEWAY_BYTES + GRAMMAR_GUARD_BYTES


def host_bytes(model: ModelConfig, need: ModelNeeds) -> int:
    """Host memory of one model's processes."""
    if need.place == "remote" or need.engine == "fake":
        return 0
    if need.place == "cuda":
        return model.replicas * (GPU_PROCESS_BYTES * model.tensor_parallel_size + need.weight_bytes)
    data = need.weight_bytes + need.kv_bytes + need.workspace_bytes
    return model.replicas * (math.ceil(data / model.gpu_memory_utilization) + CORE_BYTES)


def _times(model: ModelConfig) -> str:
    """Each replica is a process of its own, with weights of its own."""
    return f"{model.replicas} × " if model.replicas > 1 else ""


def gpus(config: ServerConfig, needs: Sequence[ModelNeeds], choices: Choices) -> tuple[int, Figure]:
    """Raises `ConfigError` when models cannot share the GPUs, or a model is too large for them."""
    shares: dict[int, float] = {}
    reasons = []
    for model, need in zip(config.models, needs, strict=True):
        if need.place != "cuda" or model.engine == "ray":  # replicas of Ray are pods of their own
            continue
        first = int(model.device.partition(":")[2] or 0)
        for index in range(first, first + model.tensor_parallel_size // choices.nodes):
            shares[index] = shares.get(index, 0.0) + model.gpu_memory_utilization * model.replicas
        over = f" over {choices.nodes} machines" if choices.nodes > 1 else ""
        reasons.append(f"{model.deployment}: tensor_parallel_size {model.tensor_parallel_size}{over}")
        _refuse_too_large(model, need, choices)
    for index, share in shares.items():
        if share > 1:
            raise ConfigError(
                f"gpu_memory_utilization: the models on GPU {index} ask for {share:.2f} of its memory together; give "
                "them shares of 1 at most in all, or another `device`, or a service of their own"
            )
    count = max(shares, default=-1) + 1
    return count, Figure("GPUs", str(count), "; ".join(reasons) or "no model computes on a GPU")


def _refuse_too_large(model: ModelConfig, need: ModelNeeds, choices: Choices) -> None:
    if choices.gpu_memory_bytes is None:
        return
    each = (need.weight_bytes + need.least_kv_bytes) / model.tensor_parallel_size
    usable = choices.gpu_memory_bytes * model.gpu_memory_utilization
    if each > usable:
        raise ConfigError(
            f"{model.name}: weights and one sequence take {show_bytes(math.ceil(each))} on each of "
            f"{model.tensor_parallel_size} GPUs, but {model.gpu_memory_utilization:g} of --gpu-memory "
            f"{show_bytes(choices.gpu_memory_bytes)} is {show_bytes(int(usable))}; use more GPUs "
            "(tensor_parallel_size), larger ones, a smaller max_model_len or a quantized model"
        )


def cpus(config: ServerConfig, needs: Sequence[ModelNeeds], choices: Choices) -> tuple[int, Figure]:
    """Raises `ConfigError` when two choices name different numbers of CPUs."""
    workers, both = config.api.workers, list(zip(config.models, needs, strict=True))
    cores = sum(model.replicas for model, need in both if need.place == "cpu" and need.engine != "fake")
    on_gpu = sum(2 * model.tensor_parallel_size * model.replicas for model, need in both if need.place == "cuda")
    on_gpu = math.ceil(on_gpu / choices.nodes)
    count = workers + 4 * cores + on_gpu
    why = f"{workers} for the gateway"
    why += f", 4 for each of {cores} engines on CPUs (a start: prompts are faster with more)" if cores else ""
    why += f", {on_gpu} for processes that feed GPUs" if on_gpu else ""
    if choices.cpu_set:
        count, why = len(choices.cpu_set), "--cpu-set"
        if choices.cpus not in (None, count):
            raise ConfigError(f"--cpus is {choices.cpus}, but --cpu-set names {count} CPUs; leave one of the two out")
    elif choices.cpus is not None:
        count, why = choices.cpus, "--cpus"
    why += "; whole ones, limit = request: the core starts one thread for each CPU of its quota"
    return count, Figure("CPUs", str(count), why)


def disk(needs: Sequence[ModelNeeds]) -> tuple[int, Figure]:
    """The volume for downloaded and converted models."""
    data = sum(need.disk_bytes for need in needs if need.local_path is None)
    size = max(math.ceil(data * 1.2 / GIB), 1) * GIB
    return size, Figure("cache volume", show_bytes(size), f"{show_bytes(data)} of models and conversions, and a fifth")


def times(config: ServerConfig, needs: Sequence[ModelNeeds], choices: Choices) -> tuple[Times, tuple[Figure, ...]]:
    download = sum(need.download_bytes for need in needs) / DOWNLOAD_BYTES_PER_S
    if choices.load_time_s is not None:
        load, how = download + choices.load_time_s, f"measured {choices.load_time_s:g} s (--load-time-s)"
    else:
        own = [need for need in needs if need.place != "remote"]
        start = sum(
            START_S.get(need.engine, OTHER_START_S) * model.replicas
            for model, need in zip(config.models, needs, strict=True)
            if need.place != "remote"
        )
        read = sum(need.weight_bytes for need in own) / READ_BYTES_PER_S
        load, how = download + start + read, f"an estimate: engine {start} s, reading weights {read:.0f} s"
    how += f"; first download {download:.0f} s at 25 MB/s" if download >= 1 else ""
    startup = max(math.ceil(load * LOAD_SPARE / PROBE_PERIOD_S) * PROBE_PERIOD_S, 60)
    drain = math.ceil(config.api.shutdown_grace_s)
    grace = PRE_STOP_S + drain + TEARDOWN_S
    result = Times(math.ceil(load), startup, PRE_STOP_S, drain, grace)
    return result, (
        Figure("load time", f"{result.load_s} s", how),
        Figure("start-up limit", f"{startup} s", f"{LOAD_SPARE} × load time, 60 s at least; then it is restarted"),
        Figure("pre-stop", f"{PRE_STOP_S} s", "balancers learn that the pod goes before it refuses anybody"),
        Figure("drain", f"{drain} s", "api.shutdown_grace_s: what runs may finish"),
        Figure("grace", f"{grace} s", f"pre-stop {PRE_STOP_S} + drain {drain} + {TEARDOWN_S} to take engines down"),
    )
