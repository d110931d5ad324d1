"""Combinations that cannot work are refused with the reason."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import SecretStr

from llm_inference.config.schema import ApiConfig, ModelConfig, ServerConfig
from llm_inference.deploy.choices import Choices
from llm_inference.deploy.facts import Mount, compute_facts
from llm_inference.deploy.needs import ModelNeeds
from llm_inference.errors import ConfigError
from tests.deploy.cases import CPU_NEEDS, REMOTE_NEEDS, VLLM_NEEDS, cpu, gateway, vllm


def facts_of(model: ModelConfig, need: ModelNeeds, api: ApiConfig | None = None, choices: Choices | None = None):  # type: ignore[no-untyped-def]
    return compute_facts(ServerConfig(api=api or ApiConfig(), models=(model,)), [need], choices or Choices())


@pytest.mark.parametrize(
    ("model", "need", "message"),
    [
        (ModelConfig(tensor_parallel_size=2), CPU_NEEDS, "tensor_parallel_size is 2, but the model computes on a CPU"),
        (
            ModelConfig(tensor_parallel_size=2),
            dataclasses.replace(CPU_NEEDS, place="cuda"),
            "the native engine runs a model on one GPU; choose `engine: vllm`",
        ),
        (
            ModelConfig(replicas=2),
            dataclasses.replace(CPU_NEEDS, place="cuda"),
            r"the models on GPU 0 ask for 1\.80 of its memory together",
        ),
    ],
)
def test_impossible(model: ModelConfig, need: ModelNeeds, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        facts_of(model, need)


def test_a_port_that_needs_root() -> None:
    with pytest.raises(ConfigError, match=r"api\.port: 80 needs root"):
        facts_of(ModelConfig(), CPU_NEEDS, ApiConfig(port=80))


def test_any_free_port_becomes_a_known_one() -> None:
    assert facts_of(ModelConfig(), CPU_NEEDS, ApiConfig(port=0)).port == 8000


@pytest.mark.parametrize(
    ("model", "need", "api", "message"),
    [
        (ModelConfig(), CPU_NEEDS, ApiConfig(uds="/run/llm.sock"), r"api\.uds: nobody outside a container"),
        (
            ModelConfig(),
            dataclasses.replace(VLLM_NEEDS, engine="tgi"),
            ApiConfig(),
            "engine: 'tgi' has no place in our",
        ),
        (ModelConfig(), dataclasses.replace(CPU_NEEDS, engine="vllm"), ApiConfig(), "vllm on a CPU has no place"),
        (
            ModelConfig(model="m", url="http://user:secret@127.0.0.1:8001"),
            REMOTE_NEEDS,
            ApiConfig(),
            r"inside a container 127\.0\.0\.1:8001 is the container itself",
        ),
    ],
)
def test_no_container_can_do_it(model: ModelConfig, need: ModelNeeds, api: ApiConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        facts_of(model, need, api).require_container("docker")


def test_sqlite_is_for_one_gateway() -> None:
    api = ApiConfig(ledger="sqlite")
    with pytest.raises(ConfigError, match=r"api\.ledger: sqlite is a file for one gateway, and up to 4 pods"):
        facts_of(ModelConfig(), CPU_NEEDS, api).require_cluster("kubernetes")
    facts_of(ModelConfig(), CPU_NEEDS, api, Choices(replicas=1, max_replicas=1)).require_cluster("kubernetes")


def test_keys_of_any_kind_count() -> None:
    with pytest.raises(ConfigError, match="nginx: the configuration has no keys"):
        facts_of(ModelConfig(), CPU_NEEDS).require_keys("nginx")
    for api in (ApiConfig(api_keys=(SecretStr("k"),)), ApiConfig(key_store="sqlite")):
        assert facts_of(ModelConfig(), CPU_NEEDS, api).has_keys


def test_models_of_the_same_name_are_mounted_apart() -> None:
    config = ServerConfig(models=(ModelConfig(name="a", model="/x/m"), ModelConfig(name="b", model="/y/m")))
    needs = [dataclasses.replace(CPU_NEEDS, local_path=path, download_bytes=0) for path in ("/x/m", "/y/m")]
    facts = compute_facts(config, needs, Choices())
    assert facts.mounts == (Mount("/x/m", "/models/0/m"), Mount("/y/m", "/models/1/m"))
    assert not facts.fetches


def test_engines_beside_ours() -> None:
    assert (cpu().engines, vllm().engines, gateway().engines) == ((), ("vllm",), ())


def test_every_number_has_a_reason() -> None:
    for facts in (cpu(), vllm(), gateway()):
        names = [figure.name for figure in facts.figures]
        assert {"memory", "CPUs", "GPUs", "grace", "drain", "cache volume", "start-up limit"} <= set(names)
        assert all(figure.why for figure in facts.figures)


def test_limits_in_memory_are_each_pods_own() -> None:
    said = ApiConfig.model_validate({"key_limits": {"requests_per_minute": 60}})
    found = [figure.why for figure in facts_of(ModelConfig(), CPU_NEEDS, said).figures if figure.name == "limits"]
    assert found == ["counted in memory, so up to 4 pods allow that many times as much; set limits_store"]
    stored = said.model_copy(update={"limits_store": "redis://r"})
    assert "limits" not in [figure.name for figure in facts_of(ModelConfig(), CPU_NEEDS, stored).figures]
