from __future__ import annotations

from typing import Any

import pytest

from llm_inference.adapters.ray.options import app_name, deployment_options, described
from llm_inference.config.schema import ModelConfig


def model(ray: dict[str, Any] | None = None, **more: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "m", "engine": "ray", "ray": ray or {}, **more})


def test_replicas_on_cpus() -> None:
    options = deployment_options(model({"replicas": 2, "num_cpus": 4.0}, max_num_seqs=24))
    assert options["num_replicas"] == 2
    assert options["ray_actor_options"] == {"num_cpus": 4.0, "num_gpus": 0}
    assert options["max_ongoing_requests"] == 24
    assert "autoscaling_config" not in options


def test_more_replicas_than_asked_for_is_autoscaling() -> None:
    options = deployment_options(model({"replicas": 1, "max_replicas": 5, "target_ongoing_requests": 3}))
    assert options["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 5, "target_ongoing_requests": 3}
    assert "num_replicas" not in options


def test_tensor_parallelism_is_a_placement_group_on_one_machine() -> None:
    options = deployment_options(model({"num_cpus": 8.0}, tensor_parallel_size=4))
    assert options["placement_group_bundles"] == [{"CPU": 2.0, "GPU": 1.0}] * 4
    assert options["placement_group_strategy"] == "STRICT_PACK"
    assert options["ray_actor_options"] == {"num_cpus": 0}


@pytest.mark.parametrize(("device", "gpus"), [("auto", 0), ("cpu", 0), ("cuda", 1)])
def test_gpus_follow_the_device(device: str, gpus: int) -> None:
    assert deployment_options(model(device=device))["ray_actor_options"]["num_gpus"] == gpus


def test_a_replica_reads_back_the_engine_s_keys() -> None:
    outer = model({"engine": "native"}, precision="int8", max_model_len=512, generation={"temperature": 0.5})
    inner = ModelConfig.model_validate_json(described(outer))
    assert (inner.engine, inner.precision, inner.max_model_len) == ("native", "int8", 512)
    assert inner.generation.temperature == 0.5


def test_scaling_is_no_change_of_what_a_replica_is_told() -> None:
    assert described(model({"replicas": 1})) == described(model({"replicas": 3, "num_cpus": 2.0}, aliases=["x"]))


def test_names_of_applications_are_plain() -> None:
    assert app_name(model(name="org/chat model@2")) == "llm-inference-org-chat-model-2"
    assert app_name(model({"app_prefix": "blue"})) == "blue-m"


def test_custom_resources_of_a_replica() -> None:
    alone = deployment_options(model({"resources": {"big": 1}}))
    assert alone["ray_actor_options"]["resources"] == {"big": 1.0}
    bundles = deployment_options(model({"resources": {"big": 1}}, tensor_parallel_size=2))["placement_group_bundles"]
    assert bundles == [{"CPU": 0.5, "GPU": 1.0, "big": 1.0}, {"CPU": 0.5, "GPU": 1.0}]


def test_tiers_of_a_name_are_applications_of_their_own() -> None:
    names = {app_name(model(tier=tier, version=version)) for tier in ("gold", "int8") for version in (None, "2")}
    assert names == {"llm-inference-m-gold", "llm-inference-m-int8", "llm-inference-m-2-gold", "llm-inference-m-2-int8"}
