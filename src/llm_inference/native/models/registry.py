"""From a `model_type` to the class that runs it. Built-ins and plugins come through the same door.

A package adds an architecture with an entry point in the group `llm_inference.models`:

    [project.entry-points."llm_inference.models"]
    my_model = "my_package.my_model:MyModelForCausalLM"
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, cast

from llm_inference.errors import UnsupportedModelError
from llm_inference.native.models.base import ModelFactory

GROUP: Final = "llm_inference.models"

#: model_type → "module:Class", imported when asked for.
BUILT_IN: Final = {
    "llama": "llm_inference.native.models.llama:LlamaForCausalLM",
    "mistral": "llm_inference.native.models.llama:LlamaForCausalLM",
    "qwen2": "llm_inference.native.models.llama:LlamaForCausalLM",
}


def known_models() -> dict[str, str]:
    """Every model_type and where its class is. A plugin may add names, never replace a built-in one."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)} | BUILT_IN


def model_class(model_type: str) -> ModelFactory:
    """Raises `UnsupportedModelError` for an unknown type, or a plugin that cannot be imported."""
    known = known_models()
    if model_type not in known:
        raise UnsupportedModelError(
            f"the native engine does not know the architecture {model_type!r}; it knows {', '.join(sorted(known))}. "
            f"Choose another engine (`engine:`), or install a package with an entry point in {GROUP!r}."
        )
    module, _, name = known[model_type].partition(":")
    try:
        return cast(ModelFactory, getattr(import_module(module), name))
    except (ImportError, AttributeError) as exc:
        raise UnsupportedModelError(
            f"the class {known[model_type]!r} for architecture {model_type!r} cannot be imported: {exc}"
        ) from exc
