"""A model's application for Ray Serve's own config files: `import_path: llm_inference.adapters.ray.application:build`.

So `serve deploy`, `serve run` and KubeRay's RayService deploy what `engine: ray` with `attach` then finds.
"""

from __future__ import annotations

from pathlib import Path

from ray.serve import Application

from llm_inference.adapters.ray.deployment import application
from llm_inference.config.load import load_config
from llm_inference.errors import ConfigError


def build(args: dict[str, str]) -> Application:
    """`args`: `config`, the path of a configuration on the cluster's machines, and `model`, one of its deployments.

    Other keys are for Ray, which deploys again when they change. Raises `ConfigError`.
    """
    for key in ("config", "model"):
        if key not in args:
            raise ConfigError(f"args of the application: {key!r} is missing")
    config = load_config(Path(args["config"])).config
    for model in config.models:
        if model.deployment == args["model"]:
            return application(model.on_ray(), config.api.log_level)
    names = ", ".join(model.deployment for model in config.models)
    raise ConfigError(f"args.model: {args['model']!r} is not in {args['config']}, which has {names}")
