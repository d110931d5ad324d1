"""A model as an application of Ray Serve: deployed, updated, found, removed; and the connection to the cluster."""

from __future__ import annotations

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from llm_inference.adapters.ray.options import app_name, deployment_options, described
from llm_inference.adapters.ray.replica import EngineReplica
from llm_inference.config.schema import ModelConfig
from llm_inference.errors import StartupError

_DEPLOYMENT = "engine"


def connect(address: str | None) -> None:
    """Join the cluster at `address`, or begin one on this machine. Raises `StartupError`. Blocks."""
    if ray.is_initialized():  # by another model of this process
        return
    try:
        ray.init(address=address, include_dashboard=False if address is None else None)
    except (ConnectionError, ValueError, RuntimeError) as exc:
        raise StartupError(f"ray.address: no Ray cluster at {address or 'this machine'!r}: {exc}") from exc
    serve.start(proxy_location="Disabled")  # HTTP is this gateway's


def deploy(model: ModelConfig, log_level: str) -> DeploymentHandle:
    """Deploy or update a model's application; returns when its replicas are ready. Blocks.

    With an application of that name in the cluster already this is a rolling update: replicas are replaced by and by,
    each when its running requests have finished. Raises `StartupError` with the replica's own words.
    """
    deployment = serve.deployment(EngineReplica, name=_DEPLOYMENT, **deployment_options(model))
    name = app_name(model)
    try:
        return serve.run(deployment.bind(described(model), log_level), name=name, route_prefix=None)
    except RuntimeError as exc:
        status = serve.status().applications.get(name)
        said = "" if status is None else "; ".join(d.message for d in status.deployments.values() if d.message)
        raise StartupError(f"{model.name}: no replica came up in the Ray cluster: {said or exc}") from exc


def find(model: ModelConfig) -> DeploymentHandle:
    """The application that another process deployed. Raises `StartupError`. Blocks."""
    try:
        return serve.get_deployment_handle(_DEPLOYMENT, app_name(model))
    except RuntimeError as exc:
        raise StartupError(f"{model.name}: the application {app_name(model)!r} is not in the Ray cluster") from exc


def remove(name: str) -> None:
    """Take an application out of the cluster, draining its replicas. Blocks."""
    serve.delete(name)
