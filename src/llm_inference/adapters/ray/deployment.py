"""A model as an application of Ray Serve: deployed, updated, found, removed; and the connection to the cluster."""

from __future__ import annotations

import time

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from llm_inference.adapters.ray.options import app_name, deployment_options, described
from llm_inference.adapters.ray.replica import EngineReplica
from llm_inference.config.schema import ModelConfig
from llm_inference.errors import StartupError

_DEPLOYMENT = "engine"
_POLL_S = 1.0


def connect(address: str | None) -> None:
    """Join the cluster at `address`, or begin one on this machine. Raises `StartupError`. Blocks."""
    if ray.is_initialized():  # by another model of this process
        return
    try:
        # Not None: that joins whatever cluster was begun on this machine last, were it gone.
        ray.init(address=address or "local", include_dashboard=False if address is None else None)
    except (ConnectionError, ValueError, RuntimeError) as exc:
        raise StartupError(f"ray.address: no Ray cluster at {address or 'this machine'!r}: {exc}") from exc
    serve.start(proxy_location="Disabled")  # HTTP is this gateway's


def attach(address: str | None, model: ModelConfig, timeout_s: float) -> DeploymentHandle:
    """The application that others deploy, once it runs. Raises `StartupError` when it does not in time. Blocks.

    Neither the cluster nor Ray Serve is begun here: whoever deploys may still be about to.
    """
    deadline = time.monotonic() + timeout_s
    reason = "it has not been deployed"
    while time.monotonic() < deadline:
        try:
            if not ray.is_initialized():
                ray.init(address=address or "auto")
            app = serve.status().applications.get(app_name(model))
            if app is not None and app.status == "RUNNING":
                return serve.get_deployment_handle(_DEPLOYMENT, app_name(model))
            reason = "it has not been deployed" if app is None else f"it is {app.status}: {app.message}"
        except (ConnectionError, ValueError, RuntimeError, RayError, RayServeException) as exc:
            reason = str(exc)
        time.sleep(_POLL_S)
    raise StartupError(f"{model.name}: the application {app_name(model)!r} does not run in the Ray cluster: {reason}")


def deploy(model: ModelConfig, log_level: str) -> DeploymentHandle:
    """Deploy or update a model's application; returns when its replicas are ready. Blocks.

    With an application of that name in the cluster already this is a rolling update: replicas are replaced by and by,
    each when its running requests have finished. Raises `StartupError` with the replica's own words.
    """
    name = app_name(model)
    try:
        return serve.run(application(model, log_level), name=name, route_prefix=None)
    except RuntimeError as exc:
        status = serve.status().applications.get(name)
        said = "" if status is None else "; ".join(d.message for d in status.deployments.values() if d.message)
        raise StartupError(f"{model.name}: no replica came up in the Ray cluster: {said or exc}") from exc


def application(model: ModelConfig, log_level: str) -> Application:
    """What is deployed of a model, by us or by a Serve config file."""
    deployment = serve.deployment(EngineReplica, name=_DEPLOYMENT, **deployment_options(model))
    return deployment.bind(described(model), log_level)


def find(model: ModelConfig) -> DeploymentHandle:
    """The application that another process deployed. Raises `StartupError`. Blocks."""
    try:
        return serve.get_deployment_handle(_DEPLOYMENT, app_name(model))
    except RuntimeError as exc:
        raise StartupError(f"{model.name}: the application {app_name(model)!r} is not in the Ray cluster") from exc


def remove(name: str) -> None:
    """Take an application out of the cluster, draining its replicas. Blocks."""
    serve.delete(name)
