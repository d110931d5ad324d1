"""`engine: ray`: checks what can be checked without Ray, then makes the engine. Imports ray only then."""

from __future__ import annotations

from importlib.util import find_spec

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.errors import ConfigError


def create(config: ModelConfig, context: EngineContext) -> Engine:
    """Raises `ConfigError`; the model itself is planned in its replicas."""
    if config.url is not None:
        raise ConfigError(f"{config.name}: `engine: ray` starts replicas, `url` means a server that runs; keep one")
    if config.replicas > 1:
        raise ConfigError(f"{config.name}: with `engine: ray` say `ray.replicas: {config.replicas}`, not `replicas`")
    if config.ray.engine == "ray":
        raise ConfigError(f"{config.name}: ray.engine is the engine in each replica, such as native or vllm")
    engine_factory(config.ray.engine)  # an unknown name is known now, not in some replica
    if find_spec("ray") is None or find_spec("ray.serve") is None:
        raise ConfigError('`engine: ray` needs Ray Serve: pip install "llm-inference[ray]"')
    from llm_inference.adapters.ray.engine import RayEngine

    return RayEngine(config, context)
