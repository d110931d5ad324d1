"""The arithmetic against sums made by hand."""

from __future__ import annotations

import math

import pytest

from llm_inference.config.schema import ApiConfig, ModelConfig, ServerConfig
from llm_inference.deploy import sizing
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.errors import ConfigError
from tests.deploy.cases import CPU_NEEDS, FAKE_NEEDS, GIB, MIB, REMOTE_NEEDS, VLLM_NEEDS, cpu, gateway, vllm


def config_of(*models: ModelConfig, **api: object) -> ServerConfig:
    return ServerConfig(api=ApiConfig(**api), models=models)  # type: ignore[arg-type]


def test_memory_is_the_allocators_sum_and_the_processes() -> None:
    total, figure = sizing.memory(config_of(ModelConfig()), [CPU_NEEDS], Choices())
    exact = (651306240 + GIB + 44826624) / 0.9 + (450 + 250 + 70) * MIB
    assert exact <= total < exact + 256 * MIB
    assert total % (256 * MIB) == 0
    assert "weights 0.61 GiB + KV cache 1.00 GiB + workspace 43 MiB) / 0.9" in figure.why


def test_the_native_allocator_is_content_with_the_memory() -> None:
    """What remains of the limit beside the gateway holds what the core will ask for."""
    from llm_inference.native.budget import MemoryNeeds, plan_memory

    total, _ = sizing.memory(config_of(ModelConfig()), [CPU_NEEDS], Choices())
    plan = plan_memory(
        MemoryNeeds(
            weight_bytes=CPU_NEEDS.weight_bytes,
            kv_bytes_per_token=46080,
            workspace_bytes=CPU_NEEDS.workspace_bytes,
            alternatives={},
        ),
        available_bytes=total - sizing.GATEWAY_BYTES,
        utilization=0.9,
        kv_cache_bytes=None,
        default_kv_bytes=None,
        max_model_len=8192,
        max_num_seqs=64,
        block_size=32,
    )
    assert plan.kv_cache_bytes >= CPU_NEEDS.kv_bytes - 32 * 46080


def test_workers_have_a_parent_beside_them() -> None:
    assert sizing.gateway_bytes(config_of(ModelConfig(), workers=1)) == 320 * MIB
    assert sizing.gateway_bytes(config_of(ModelConfig(), workers=3)) == (4 * 250 + 70) * MIB


def test_a_remote_model_takes_nothing() -> None:
    assert gateway().memory_bytes == 1024 * MIB  # (2 workers + parent) × 250 MiB + 70 MiB, rounded
    assert (gateway().gpus, gateway().cpus) == (0, 2)


def test_a_chosen_limit_must_hold_it() -> None:
    model = config_of(ModelConfig())
    with pytest.raises(ConfigError, match=r"--memory is 1\.00 GiB, but the service needs: gateway 0\.31 GiB; SmolLM2"):
        sizing.memory(model, [CPU_NEEDS], Choices(memory_bytes=GIB))
    assert sizing.memory(model, [CPU_NEEDS], Choices(memory_bytes=8 * GIB))[0] == 8 * GIB


def test_gpus_are_those_of_the_widest_model() -> None:
    assert sizing.gpus(config_of(ModelConfig(tensor_parallel_size=4)), [VLLM_NEEDS], Choices())[0] == 4
    assert sizing.gpus(config_of(ModelConfig(device="cuda:2")), [VLLM_NEEDS], Choices())[0] == 3
    assert sizing.gpus(config_of(ModelConfig()), [CPU_NEEDS], Choices())[0] == 0


def test_models_that_cannot_share_a_gpu_are_refused() -> None:
    two = config_of(ModelConfig(name="a"), ModelConfig(name="b"))
    with pytest.raises(ConfigError, match=r"the models on GPU 0 ask for 1\.80 of its memory together"):
        sizing.gpus(two, [VLLM_NEEDS, VLLM_NEEDS], Choices())
    halves = config_of(*(ModelConfig(name=name, gpu_memory_utilization=0.45) for name in "ab"))
    assert sizing.gpus(halves, [VLLM_NEEDS, VLLM_NEEDS], Choices())[0] == 1


def test_a_model_too_large_for_its_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weights and one sequence take 6\.66 GiB on each of 1 GPUs"):
        sizing.gpus(config_of(ModelConfig()), [VLLM_NEEDS], Choices(gpu_memory_bytes=6 * GIB))
    assert sizing.gpus(config_of(ModelConfig()), [VLLM_NEEDS], Choices(gpu_memory_bytes=8 * GIB))[0] == 1


def test_cpus() -> None:
    assert sizing.cpus(config_of(ModelConfig(), workers=2), [CPU_NEEDS], Choices())[0] == 6
    assert sizing.cpus(config_of(ModelConfig(tensor_parallel_size=2)), [VLLM_NEEDS], Choices())[0] == 5
    count, figure = sizing.cpus(config_of(ModelConfig()), [CPU_NEEDS], Choices(cpus=16))
    assert count == 16
    assert figure.why.startswith("--cpus; whole ones")


def test_disk_is_what_is_kept_and_a_fifth() -> None:
    assert sizing.disk([VLLM_NEEDS])[0] == math.ceil(5800 * 1.2 / 1024) * GIB
    assert sizing.disk([REMOTE_NEEDS])[0] == GIB


@pytest.mark.parametrize("facts", [cpu(), vllm(), gateway()])
def test_grace_holds_everything_that_happens_in_it(facts: object) -> None:
    times = facts.times  # type: ignore[attr-defined]
    config = facts.config  # type: ignore[attr-defined]
    # Workers get 2 s beyond the drain, each engine 1 s; see serve/parent.py.
    assert times.grace_s > times.pre_stop_s + config.api.shutdown_grace_s + 2 + len(config.models)


def test_start_up_limits() -> None:
    estimated, _ = sizing.times(config_of(ModelConfig()), [VLLM_NEEDS], Choices())
    assert estimated.load_s == math.ceil(5800 * MIB / 25e6 + 180 + 5800 * MIB / 200e6)
    assert estimated.startup_s >= 3 * estimated.load_s - 15
    measured, figures = sizing.times(config_of(ModelConfig()), [CPU_NEEDS], Choices(load_time_s=10.0))
    assert measured.load_s == math.ceil(92 * MIB / 25e6 + 10)
    assert measured.startup_s == 60
    assert "measured 10 s (--load-time-s)" in figures[0].why
    assert measured.startup_failures * sizing.PROBE_PERIOD_S >= measured.startup_s


def test_the_fake_engine_takes_nothing() -> None:
    assert sizing.host_bytes(ModelConfig(), FAKE_NEEDS) == 0


def test_show_bytes() -> None:
    assert [sizing.show_bytes(one) for one in (5 * MIB, 3 * GIB // 2)] == ["5 MiB", "1.50 GiB"]


def test_needs_are_plain() -> None:
    assert ModelNeeds(engine="native", place="cpu", engine_why="").weight_bytes == 0


def test_every_replica_has_its_own_memory_cpus_and_start() -> None:
    one, two = ModelConfig(kv_cache_memory=GIB), ModelConfig(kv_cache_memory=GIB, replicas=2)
    assert sizing.host_bytes(two, CPU_NEEDS) == 2 * sizing.host_bytes(one, CPU_NEEDS)
    total, figure = sizing.memory(config_of(two), [CPU_NEEDS], Choices())
    assert total >= 2 * sizing.host_bytes(one, CPU_NEEDS)
    assert "2 × SmolLM2-135M-Instruct: (weights" in figure.why
    assert sizing.cpus(config_of(two), [CPU_NEEDS], Choices())[0] == 1 + 2 * 4
    starts = [sizing.times(config_of(model), [CPU_NEEDS], Choices())[0].load_s for model in (one, two)]
    assert starts[1] - starts[0] == sizing.START_S["native"]


def test_a_set_of_cpus_says_how_many() -> None:
    count, figure = sizing.cpus(config_of(ModelConfig()), [CPU_NEEDS], Choices(cpu_set=(2, 3, 8)))
    assert count == 3
    assert figure.why.startswith("--cpu-set; whole ones")
    with pytest.raises(ConfigError, match="--cpus is 4, but --cpu-set names 3 CPUs"):
        sizing.cpus(config_of(ModelConfig()), [CPU_NEEDS], Choices(cpu_set=(2, 3, 8), cpus=4))
