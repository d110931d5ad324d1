"""The tensors of a Llama-family checkpoint, checked and kept as they are, for runners that pack them.

They share the memory of the mapped files; each is taken once, so that what a runner does not keep of it is free again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import torch

from llm_inference.errors import SourceError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.layers.weights import WeightSlot

logger = logging.getLogger(__name__)

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"


class LlamaWeights:
    """Takes every tensor that the architecture has, by the name that it has in the checkpoint."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._tensors: dict[str, torch.Tensor] = {}

    def slots(self) -> dict[str, WeightSlot]:
        spec = self._spec
        hidden, inner = spec.hidden_size, spec.intermediate_size
        q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        linears = {
            "self_attn.q_proj": (q, hidden, spec.qkv_bias),
            "self_attn.k_proj": (kv, hidden, spec.qkv_bias),
            "self_attn.v_proj": (kv, hidden, spec.qkv_bias),
            "self_attn.o_proj": (hidden, q, spec.attention_output_bias),
            "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
            "mlp.up_proj": (inner, hidden, spec.mlp_bias),
            "mlp.down_proj": (hidden, inner, spec.mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {
            EMBEDDING: (spec.vocab_size, hidden),
            HEAD: (spec.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        for layer in (f"model.layers.{index}." for index in range(spec.num_layers)):
            shapes[f"{layer}input_layernorm.weight"] = shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
            for name, (rows, columns, has_bias) in linears.items():
                shapes[f"{layer}{name}.weight"] = (rows, columns)
                if has_bias:
                    shapes[f"{layer}{name}.bias"] = (rows,)
        return {name: WeightSlot(shape, self._storing(name)) for name, shape in shapes.items()}

    def optional(self) -> frozenset[str]:
        """Tied: one of the two ends may be absent."""
        return frozenset((EMBEDDING, HEAD)) if self._spec.tie_word_embeddings else frozenset()

    def take(self, name: str) -> torch.Tensor:
        """A tensor, once: what the graph does not keep of it is free afterwards."""
        return self._tensors.pop(name)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def take_ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The embedding and the head, the same object where one matrix serves both: see `EmbeddingAndHead`.

        Raises `SourceError` if neither came.
        """
        table, head = self._tensors.pop(EMBEDDING, None), self._tensors.pop(HEAD, None)
        if table is None or head is None:
            only = table if head is None else head
            if only is None:
                raise SourceError("the weights lack both the embedding and the output head; fetch the model again")
            return only, only
        if self._spec.tie_word_embeddings:
            if torch.equal(table, head):
                return table, table
            logger.warning(
                "the configuration ties the output head to the embedding, but the checkpoint holds two different "
                "matrices; both are used as they are"
            )
        return table, head

    def _storing(self, name: str) -> Callable[[torch.Tensor], None]:
        def store(tensor: torch.Tensor) -> None:
            self._tensors[name] = tensor.contiguous()

        return store
