"""Which engine a name means: a literal table of built-ins, and entry points through the same door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.errors import ConfigError

#: name → "module:factory". Imported only when asked for.
BUILT_IN = {
    "auto": "llm_inference.serve.auto:create",
    "native": "llm_inference.native.factory:create",
    "fake": "llm_inference.engine.fake_factory:create",
    "openai": "llm_inference.adapters.openai:create",
    "vllm": "llm_inference.adapters.vllm:create",
    "sglang": "llm_inference.adapters.sglang:create",
    "tgi": "llm_inference.adapters.tgi:create",
    "llama.cpp": "llm_inference.adapters.llamacpp:create",
    "ollama": "llm_inference.adapters.ollama:create",
    "tensorrt-llm": "llm_inference.adapters.tensorrt_llm:create",
    "transformers": "llm_inference.adapters.transformers_serve:create",
    "lightllm-openai": "llm_inference.adapters.lightllm_openai:create",
    "lightllm": "llm_inference.adapters.lightllm:create",
    "triton": "llm_inference.adapters.triton:create",
    "mii": "llm_inference.adapters.mii:create",
    "tgi-generate": "llm_inference.adapters.tgi_generate:create",
    "sglang-generate": "llm_inference.adapters.sglang_generate:create",
    "ollama-native": "llm_inference.adapters.ollama_native:create",
    "openvino": "llm_inference.adapters.library.openvino:create",
    "onnx": "llm_inference.adapters.library.onnx:create",
    "ray": "llm_inference.adapters.ray.factory:create",
}
ENTRY_POINT_GROUP = "llm_inference.engines"


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What an engine may use beside its model's configuration."""

    run_dir: Path  # private to this process tree; sockets and setup files
    progress: bool = True  # draw progress bars
    log_level: str = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    owns_core: bool = True  # False in a further gateway worker: the core is another process's child
    num_siblings: int = 1  # engines of the same entry that share the machine's memory and CPUs, itself included


#: Resolves, checks and plans; raises `StartupError`. The engine it returns is not started.
EngineFactory = Callable[[ModelConfig, EngineContext], Engine]


def engine_factory(name: str) -> EngineFactory:
    """The factory behind `engine: name`. Raises `ConfigError` naming the known ones."""
    target = BUILT_IN.get(name)
    if target is None:
        plugins = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
        if name not in plugins:
            known = ", ".join(sorted({*BUILT_IN, *plugins}))
            raise ConfigError(f"engine: {name!r} is unknown; known engines are {known}")
        factory: EngineFactory = plugins[name].load()
        return factory
    module, _, attribute = target.partition(":")
    loaded: EngineFactory = getattr(import_module(module), attribute)
    return loaded
