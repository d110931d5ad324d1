"""A Llama whose embeddings are multiplied and whose logits are divided by constants of its config.json.

    {"model_type": "scaled_llama", "embedding_multiplier": 12.0, "logits_scaling": 8.0, …}

Everything else (weights' names, attention, the paged cache) is the Llama family's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llm_inference.errors import SourceError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.layers.linear import Placement
from llm_inference.native.models.llama import LlamaForCausalLM


class ScaledLlamaForCausalLM(LlamaForCausalLM):
    """The entry point `scaled_llama`."""

    def __init__(self, spec: ModelSpec, config: Mapping[str, Any], placement: Placement) -> None:
        super().__init__(spec, config, placement)
        self._embedding_multiplier = _positive(config, "embedding_multiplier")
        self._logits_scaling = _positive(config, "logits_scaling")

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return super().embed(token_ids) * self._embedding_multiplier

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().logits(hidden) / self._logits_scaling


def _positive(config: Mapping[str, Any], key: str) -> float:
    """A number of config.json; 1 where it says nothing. A wrong one is an error that names the key."""
    value = config.get(key, 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise SourceError(f"config.json: {key!r} must be a number above 0, not {value!r}")
    return float(value)
