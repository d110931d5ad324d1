"""What Ray Serve is told of a model, as plain data. Without ray."""

from __future__ import annotations

from typing import Any

from llm_inference.config.ray import application_name
from llm_inference.config.schema import ModelConfig

_DEFAULT_MAX_ONGOING = 64
#: Keys of a model that its engine does not read: Ray's and the gateway's.
_NOT_THE_ENGINES = {
    "ray", "aliases", "api_key", "replicas", "version", "tier", "weight", "shadow", "routing", "limits", "price",
    "warmup",
}  # fmt: skip


def app_name(model: ModelConfig) -> str:
    """The name of a model's application: letters, digits and dashes. Tiers and versions of a name have their own."""
    return application_name(model.ray.app_prefix, model.deployment)


def described(model: ModelConfig) -> str:
    """What a replica is told, as JSON: the engine's own keys.

    Not those of Ray and of the gateway: a change of theirs must not replace replicas.
    """
    inner = model.model_copy(update={"engine": model.ray.engine})
    return inner.model_dump_json(exclude=_NOT_THE_ENGINES & set(ModelConfig.model_fields))


def deployment_options(model: ModelConfig) -> dict[str, Any]:
    """The arguments of `ray.serve.deployment` for a model.

    With tensor parallelism a replica is a placement group, one bundle per GPU, all on one machine: the engine's worker
    processes are children of the replica's.
    """
    wants = model.ray
    num_gpus = wants.num_gpus
    if num_gpus is None:
        num_gpus = (
            0 if model.device in ("auto", "cpu") and model.tensor_parallel_size == 1 else model.tensor_parallel_size
        )
    options: dict[str, Any] = {
        "max_ongoing_requests": wants.max_ongoing_requests or model.max_num_seqs or _DEFAULT_MAX_ONGOING,
        "max_queued_requests": wants.max_queued_requests,
        "graceful_shutdown_timeout_s": wants.drain_s,
        "graceful_shutdown_wait_loop_s": 0.2,
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 10.0,
    }
    if model.tensor_parallel_size > 1:
        per_gpu = {"CPU": wants.num_cpus / model.tensor_parallel_size, "GPU": num_gpus / model.tensor_parallel_size}
        first = per_gpu | wants.resources  # of the whole replica, which asks for them once
        options["placement_group_bundles"] = [first] + [per_gpu] * (model.tensor_parallel_size - 1)
        options["placement_group_strategy"] = "STRICT_PACK"
        options["ray_actor_options"] = {"num_cpus": 0}
    else:
        options["ray_actor_options"] = {"num_cpus": wants.num_cpus, "num_gpus": num_gpus}
        if wants.resources:
            options["ray_actor_options"]["resources"] = dict(wants.resources)
    if wants.max_replicas is not None and wants.max_replicas > wants.replicas:
        options["autoscaling_config"] = {
            "min_replicas": wants.replicas,
            "max_replicas": wants.max_replicas,
            "target_ongoing_requests": wants.target_ongoing_requests,
        }
    else:
        options["num_replicas"] = wants.replicas
    return options
