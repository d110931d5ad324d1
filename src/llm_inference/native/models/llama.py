"""The Llama family: Llama, SmolLM2, Mistral, Qwen2 and Qwen2.5. One decoder, parametrised by the spec.

    x ─ norm ─ [q|k|v] ─ rotate q,k ─ attend ─ o_proj ─ + ─ norm ─ [gate|up] ─ act(gate)·up ─ down_proj ─ + ─►
    └───────────────────────────────────────────────────┘ └──────────────────────────────────────────────┘

Knows nothing of files, block tables or sampling.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.base import AttentionShape, AttentionStep
from llm_inference.native.layers.embedding import EmbeddingAndHead
from llm_inference.native.layers.linear import Linear, Placement
from llm_inference.native.layers.norm import RMSNorm
from llm_inference.native.layers.rope import RotaryEmbedding, interleave, rotate_, rotated
from llm_inference.native.layers.weights import WeightSlot
from llm_inference.native.models.base import Compiler

#: May overwrite their argument.
ACTIVATIONS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": functools.partial(F.silu, inplace=True),
    "swish": functools.partial(F.silu, inplace=True),
    "gelu": F.gelu,
    "gelu_new": functools.partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu_,
}


class LlamaForCausalLM:
    """See `CausalLM`."""

    def __init__(self, spec: ModelSpec, config: Mapping[str, Any], placement: Placement) -> None:
        """Raises `UnsupportedModelError` or `SourceError` for parameters that are unknown or make no sense."""
        if spec.hidden_act not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"config.json: the activation {spec.hidden_act!r} is not known; known are {', '.join(ACTIVATIONS)}"
            )
        if spec.head_dim % 2:
            raise SourceError(f"config.json: 'head_dim' must be even for rotary embeddings, not {spec.head_dim}")
        self.placement = placement
        self.vocab_size = spec.vocab_size
        self._spec = spec
        self.attention_shape = AttentionShape(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.head_dim**-0.5,
            windows=layer_windows(spec, config),
        )
        self._rope = RotaryEmbedding(
            spec.head_dim,
            spec.rope,
            original_context=int(config.get("max_position_embeddings") or spec.max_position_embeddings),
            device=placement.device,
        )
        self._ends = EmbeddingAndHead(
            spec.vocab_size, spec.hidden_size, tied=spec.tie_word_embeddings, placement=placement
        )
        self._layers = [LlamaLayer(spec, index, placement) for index in range(spec.num_layers)]
        self._norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps, placement)
        self._real_rotation = False

    @property
    def preferred_rows(self) -> int:
        return self._layers[0].qkv.kernel.preferred_rows

    @property
    def num_bytes(self) -> int:
        return self._ends.num_bytes + sum(layer.num_bytes for layer in self._layers)

    def slots(self) -> dict[str, WeightSlot]:
        slots = self._ends.slots("model.embed_tokens.weight", "lm_head.weight") | self._norm.slots("model.norm")
        for index, layer in enumerate(self._layers):
            slots |= layer.slots(f"model.layers.{index}")
        return slots

    def optional(self) -> frozenset[str]:
        """Tied: one of the two ends may be absent; `finish` sees to it that not both are."""
        ends = ("model.embed_tokens.weight", "lm_head.weight")
        return frozenset(ends) if self._spec.tie_word_embeddings else frozenset()

    def finish(self) -> None:
        self._ends.finish()

    def compile_layers(self, compiler: Compiler) -> None:
        """See `CompilableLM`."""
        before, after = compiler(before_attention), compiler(LlamaLayer.after_attention)
        for layer in self._layers:
            layer.before, layer.after = before, after
        self._real_rotation = True

    def forward(self, token_ids: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        rotation = self._rope.rotation(step.positions)
        if self._real_rotation:
            rotation = torch.view_as_real(rotation)
        hidden = self.embed(token_ids)
        for layer in self._layers:
            hidden = layer(hidden, rotation, step)
        return self._norm(hidden)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """`[rows]` → `[rows, hidden]`: what the first layer sees."""
        return self._ends.embed(token_ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._ends.logits(hidden)


class LlamaLayer:
    """Attention and gated feed-forward, each with a norm before and a residual around it.

    `before` and `after` are what lies around the attention; compiled ones may take their place.
    """

    before: Callable[[LlamaLayer, torch.Tensor, torch.Tensor], torch.Tensor]
    after: Callable[[LlamaLayer, torch.Tensor, torch.Tensor], torch.Tensor]

    def __init__(self, spec: ModelSpec, index: int, placement: Placement) -> None:
        hidden, inner = spec.hidden_size, spec.intermediate_size
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self._index = index
        self._inner = inner
        self._head_dim = spec.head_dim
        self._rotated = q_size + kv_size
        self._activation = ACTIVATIONS[spec.hidden_act]
        self.attention_norm = RMSNorm(hidden, spec.rms_norm_eps, placement)
        self.qkv = Linear(hidden, (q_size, kv_size, kv_size), bias=spec.qkv_bias, placement=placement)
        self.output = Linear(q_size, (hidden,), bias=spec.attention_output_bias, placement=placement)
        self.mlp_norm = RMSNorm(hidden, spec.rms_norm_eps, placement)
        self.gate_up = Linear(hidden, (inner, inner), bias=spec.mlp_bias, placement=placement)
        self.down = Linear(inner, (hidden,), bias=spec.mlp_bias, placement=placement)
        self.before = LlamaLayer.before_attention
        self.after = LlamaLayer.after_attention

    @property
    def num_bytes(self) -> int:
        linears = (self.qkv, self.output, self.gate_up, self.down)
        return sum(linear.kernel.num_bytes for linear in linears) + 2 * self.attention_norm.weight.nbytes

    def __call__(self, hidden: torch.Tensor, rotation: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """`hidden [rows, hidden_size]` → the same shape; the argument is not changed."""
        attended = step.attend(self._index, self.before(self, hidden, rotation))
        return self.after(self, hidden, attended)

    def before_attention(self, hidden: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """`rotation`: complex, of `RotaryEmbedding`. Queries, keys and values `[rows, …]`, rotated."""
        qkv = self.qkv(self.attention_norm(hidden))
        rotate_(self.heads_of(qkv), rotation)
        return qkv

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The projection of what was attended, and the feed-forward."""
        hidden = self.output(attended, hidden)
        gate_up = self.gate_up(self.mlp_norm(hidden))
        inner = self._activation(gate_up[:, : self._inner]).mul_(gate_up[:, self._inner :])
        return self.down(inner, hidden)

    def heads_of(self, qkv: torch.Tensor) -> torch.Tensor:
        """The heads that positions rotate, `[rows, heads, head_dim]`; a view."""
        return qkv[:, : self._rotated].view(len(qkv), -1, self._head_dim)

    def slots(self, prefix: str) -> dict[str, WeightSlot]:
        def turned(rows: torch.Tensor) -> torch.Tensor:
            return interleave(rows, self._head_dim)

        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return (
            self.attention_norm.slots(f"{prefix}.input_layernorm")
            | self.qkv.slots([f"{attention}.{name}_proj" for name in "qkv"], [turned, turned, None])
            | self.output.slots([f"{attention}.o_proj"])
            | self.mlp_norm.slots(f"{prefix}.post_attention_layernorm")
            | self.gate_up.slots([f"{mlp}.gate_proj", f"{mlp}.up_proj"])
            | self.down.slots([f"{mlp}.down_proj"])
        )


def before_attention(layer: LlamaLayer, hidden: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """As `LlamaLayer.before_attention` with a real `rotation`: a compiler has no complex numbers, and fuses a copy."""
    qkv = layer.qkv(layer.attention_norm(hidden))
    turned = rotated(layer.heads_of(qkv), rotation).flatten(1)
    return torch.cat((turned, qkv[:, turned.shape[1] :]), -1)


def layer_windows(spec: ModelSpec, config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Each layer's sliding window. `layer_types` says it per layer; Qwen2 without it slides from layer
    `max_window_layers` on; the others slide in every layer if there is a window."""
    window = spec.sliding_window
    if window is None or spec.model_type == "llama":  # a Llama that states a window was trained without one
        return (None,) * spec.num_layers
    types = config.get("layer_types")
    if types is not None and spec.model_type != "mistral":  # transformers' Mistral ignores the list
        if not isinstance(types, list) or len(types) != spec.num_layers:
            raise SourceError(f"config.json: 'layer_types' must list {spec.num_layers} layers")
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = config.get("max_window_layers", 28) if spec.model_type == "qwen2" else 0
    if not isinstance(first, int):
        raise SourceError(f"config.json: 'max_window_layers' must be a whole number, not {first!r}")
    return tuple(window if index >= first else None for index in range(spec.num_layers))
