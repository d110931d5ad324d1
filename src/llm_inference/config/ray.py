"""The configuration of `engine: ray`: which cluster, and what a replica of a model may take of it."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, model_validator

from llm_inference.config.section import Section
from llm_inference.config.values import Text


def application_name(prefix: str, deployment: str) -> str:
    """The application of a model in the cluster: letters, digits and dashes."""
    return f"{prefix}-{re.sub(r'[^A-Za-z0-9-]+', '-', deployment)}"


class RayConfig(Section):
    """`ray:` of a model whose engine runs in replicas on a Ray cluster, with this process as their gateway."""

    engine: Text = Field(default="auto", description="The engine in each replica: auto, native, vllm, …")
    address: Text | None = Field(
        default=None, description="The cluster: auto for the one of this machine; null: a new one, here."
    )
    app_prefix: Text = Field(
        default="llm-inference",
        pattern=r"^[A-Za-z0-9-]+$",
        description="Begins the application's name, so that two services may share a cluster.",
    )
    attach: bool = Field(
        default=False,
        description="The application is deployed by others (KubeRay, `serve deploy`): wait for it, leave it there.",
    )
    keep: bool = Field(
        default=False, description="Leave the replicas in the cluster when this process ends; the next one finds them."
    )
    replicas: int = Field(default=1, ge=1, description="With max_replicas: the fewest.")
    max_replicas: int | None = Field(
        default=None, ge=1, description="Above `replicas`: Ray adds replicas under load, up to so many."
    )
    target_ongoing_requests: int = Field(
        default=8, ge=1, description="Requests on each replica that autoscaling aims at."
    )
    max_ongoing_requests: int | None = Field(
        default=None, ge=1, description="Requests that one replica takes at once; null: its max_num_seqs, else 64."
    )
    max_queued_requests: int = Field(
        default=256, ge=1, description="Requests that may wait for a replica; more are refused with 503."
    )
    num_cpus: float = Field(default=1.0, ge=0, description="CPUs that Ray sets aside for a replica.")
    num_gpus: float | None = Field(
        default=None, ge=0, description="GPUs of a replica; null: tensor_parallel_size where the device is no CPU."
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={}, description="Custom resources of a replica: it runs where Ray nodes offer them."
    )
    drain_s: float = Field(
        default=60.0, gt=0, description="How long running requests may finish when a replica is replaced or removed."
    )

    @model_validator(mode="after")
    def _agrees(self) -> RayConfig:
        if self.max_ongoing_requests is not None and self.target_ongoing_requests > self.max_ongoing_requests:
            raise ValueError("`target_ongoing_requests` must not be more than `max_ongoing_requests`")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("`max_replicas` must not be less than `replicas`")
        return self
