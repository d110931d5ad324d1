"""What is planned otherwise for an encoder: no cache, inputs in one piece, options without effect. Torch-free."""

from __future__ import annotations

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError, OutOfMemoryError
from llm_inference.native.budget import MemoryNeeds

_WITHOUT_EFFECT = {
    "kv_cache_memory": "an encoder has no KV cache",
    "block_size": "an encoder has no KV cache",
    "kv_cache_dtype": "an encoder has no KV cache",
    "enable_prefix_caching": "an encoder has no KV cache",
    "speculation": "an encoder generates nothing",
    "runner": "an encoder has one runner, torch",
    "attention": "an encoder has one attention, sdpa",
    "cuda_graphs": "an encoder does not decode",
    "compile": "encoders are not compiled",
    "chat_template": "an encoder does not chat",
    "generation": "an encoder generates nothing",
}


def refuse_options_without_effect(model: ModelConfig) -> None:
    """Raises `ConfigError` for an option that is set and means nothing to an encoder."""
    for key, reason in _WITHOUT_EFFECT.items():
        if key in model.model_fields_set:
            raise ConfigError(f"{key}: {reason}; remove it from the section of {model.name!r}")


def step_tokens(model: ModelConfig, max_model_len: int, default: int) -> int:
    """`max_num_batched_tokens`: at least one whole input. Raises `ConfigError` for less."""
    asked = model.max_num_batched_tokens
    if asked is not None and asked < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens is {asked}, but an encoder computes an input of up to max_model_len="
            f"{max_model_len} tokens in one piece; set the first to at least the second"
        )
    return max(asked or default, max_model_len)


def require_memory(needs: MemoryNeeds, available_bytes: int, utilization: float) -> None:
    """Raises `OutOfMemoryError` unless weights and one step's activations fit."""
    usable = int(available_bytes * utilization)
    total = needs.weight_bytes + needs.workspace_bytes
    if total > usable:
        raise OutOfMemoryError(
            f"the model needs {total / 2**20:.1f} MiB of memory: {needs.weight_bytes / 2**20:.1f} MiB for weights and "
            f"{needs.workspace_bytes / 2**20:.1f} MiB to work in; {usable / 2**20:.1f} MiB can be used. What would "
            "help: a lower max_num_batched_tokens, a smaller model, or more free memory."
        )
