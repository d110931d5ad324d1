"""The BERT family of encoders: BERT, RoBERTa, XLM-RoBERTa and DistilBERT. One encoder, parametrised by the config.

    words + positions (+ type) ─ norm ─► x ─ [q|k|v] ─ attend ─ output ─ + ─ norm ─ up ─ act ─ down ─ + ─ norm ─►
                                         └────────────────────────────┘        └────────────────────┘

Knows nothing of files, pooling or scheduling. Heads for other tasks (pooler, masked words, classes) are left unread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

from llm_inference.errors import UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.bidirectional import BidirectionalAttention
from llm_inference.native.layers.layer_norm import LayerNorm
from llm_inference.native.layers.linear import Linear, Placement
from llm_inference.native.layers.weights import WeightSlot
from llm_inference.native.models.llama import ACTIVATIONS

_PREFIX: Final = re.compile(r"^(?:bert|roberta|distilbert)\.")
#: Buffers, and heads that make something else of the hidden states.
_UNUSED: Final = re.compile(
    r"^(?:embeddings\.(?:position_ids|token_type_ids)$|(?:pooler|cls|lm_head|classifier|pre_classifier|qa_outputs|"
    r"vocab_transform|vocab_layer_norm|vocab_projector)\.)"
)
#: Other spellings of a part of a tensor's name: of the first BERT checkpoints, and of DistilBERT.
_SPELLINGS: Final = (
    ("LayerNorm.gamma", "LayerNorm.weight"),
    ("LayerNorm.beta", "LayerNorm.bias"),
    ("transformer.layer.", "encoder.layer."),
    (".attention.q_lin.", ".attention.self.query."),
    (".attention.k_lin.", ".attention.self.key."),
    (".attention.v_lin.", ".attention.self.value."),
    (".attention.out_lin.", ".attention.output.dense."),
    (".sa_layer_norm.", ".attention.output.LayerNorm."),
    (".ffn.lin1.", ".intermediate.dense."),
    (".ffn.lin2.", ".output.dense."),
    (".output_layer_norm.", ".output.LayerNorm."),
)


class BertEncoder:
    """See `Encoder`."""

    def __init__(self, spec: ModelSpec, config: Mapping[str, Any], placement: Placement) -> None:
        """Raises `UnsupportedModelError` for what would change the result and is not implemented."""
        if spec.hidden_act not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"config.json: the activation {spec.hidden_act!r} is not known; known are {', '.join(ACTIVATIONS)}"
            )
        kind = config.get("position_embedding_type", "absolute")
        if kind != "absolute" or config.get("is_decoder"):
            what = f"position_embedding_type {kind!r}" if kind != "absolute" else "is_decoder"
            raise UnsupportedModelError(f"config.json: {what} is not implemented for encoders")
        self.placement = placement
        self.hidden_size = spec.hidden_size
        self._heads = (spec.num_heads, spec.head_dim)
        #: RoBERTa's table begins with rows for padding that no token uses.
        self._first_position = int(config["max_position_embeddings"]) - spec.max_position_embeddings
        eps = float(config.get("layer_norm_eps") or 1e-12)
        num_types = 0 if spec.model_type == "distilbert" else int(config.get("type_vocab_size") or 2)
        self._words = self._table(spec.vocab_size)
        self._positions = self._table(self._first_position + spec.max_position_embeddings)
        self._types = self._table(num_types)
        self._norm = LayerNorm(spec.hidden_size, eps, placement)
        self._layers = [BertLayer(spec, eps, placement) for _ in range(spec.num_layers)]

    @property
    def num_bytes(self) -> int:
        tables = self._words.nbytes + self._positions.nbytes + self._types.nbytes
        return tables + self._norm.num_bytes + sum(layer.num_bytes for layer in self._layers)

    def tensor_name(self, name: str) -> str | None:
        name = _PREFIX.sub("", name)
        if _UNUSED.match(name):
            return None
        for other, ours in _SPELLINGS:
            name = name.replace(other, ours)
        return name

    def slots(self) -> dict[str, WeightSlot]:
        slots = self._norm.slots("embeddings.LayerNorm")
        for name, table in (("word", self._words), ("position", self._positions), ("token_type", self._types)):
            if len(table):
                slots[f"embeddings.{name}_embeddings.weight"] = WeightSlot(tuple(table.shape), _copy_to(table))
        for index, layer in enumerate(self._layers):
            slots |= layer.slots(f"encoder.layer.{index}")
        return slots

    def optional(self) -> frozenset[str]:
        return frozenset()

    def finish(self) -> None:
        """Every input is a first segment: its type's vector is part of the positions'."""
        if len(self._types):
            self._positions += self._types[0]

    def forward(self, token_ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        device = self.placement.device
        attention = BidirectionalAttention(lengths, *self._heads, device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device) + self._first_position
        hidden = self._norm(F.embedding(token_ids, self._words) + F.embedding(positions, self._positions))
        for layer in self._layers:
            hidden = layer(hidden, attention)
        return hidden

    def _table(self, size: int) -> torch.Tensor:
        return torch.empty(size, self.hidden_size, dtype=self.placement.dtype, device=self.placement.device)


class BertLayer:
    """Attention and feed-forward, each with a residual around it and a norm behind that."""

    def __init__(self, spec: ModelSpec, eps: float, placement: Placement) -> None:
        hidden, inner = spec.hidden_size, spec.intermediate_size
        self._activation = ACTIVATIONS[spec.hidden_act]
        self.qkv = Linear(hidden, (hidden, hidden, hidden), bias=True, placement=placement)
        self.output = Linear(hidden, (hidden,), bias=True, placement=placement)
        self.attention_norm = LayerNorm(hidden, eps, placement)
        self.up = Linear(hidden, (inner,), bias=True, placement=placement)
        self.down = Linear(inner, (hidden,), bias=True, placement=placement)
        self.mlp_norm = LayerNorm(hidden, eps, placement)

    @property
    def num_bytes(self) -> int:
        linears = (self.qkv, self.output, self.up, self.down)
        return sum(linear.kernel.num_bytes for linear in linears) + 2 * self.mlp_norm.num_bytes

    def __call__(self, hidden: torch.Tensor, attention: BidirectionalAttention) -> torch.Tensor:
        hidden = self.attention_norm(self.output(attention.attend(self.qkv(hidden)), hidden))
        return self.mlp_norm(self.down(self._activation(self.up(hidden)), hidden))

    def slots(self, prefix: str) -> dict[str, WeightSlot]:
        attention = f"{prefix}.attention"
        return (
            self.qkv.slots([f"{attention}.self.{name}" for name in ("query", "key", "value")])
            | self.output.slots([f"{attention}.output.dense"])
            | self.attention_norm.slots(f"{attention}.output.LayerNorm")
            | self.up.slots([f"{prefix}.intermediate.dense"])
            | self.down.slots([f"{prefix}.output.dense"])
            | self.mlp_norm.slots(f"{prefix}.output.LayerNorm")
        )


def _copy_to(table: torch.Tensor) -> Any:
    def store(tensor: torch.Tensor) -> None:
        table.copy_(tensor)

    return store
