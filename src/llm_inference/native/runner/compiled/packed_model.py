"""A checkpoint's tensors as the model that the library computes: rounded, packed, and described by its structs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import torch

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.layers.rope import inverse_frequencies
from llm_inference.native.models.llama import layer_windows
from llm_inference.native.runner.compiled.library import ACTIVATIONS, HEAD_DIM_STEP, MAX_HEAD_DIM, Layer, Matrix, Model
from llm_inference.native.runner.compiled.memory import Region
from llm_inference.native.runner.compiled.packing import (
    FLOAT_BITS,
    GATE_RUN,
    PANEL,
    float_panels,
    interleave_gate_up,
    pack,
    packed_bytes,
    round_weight,
)
from llm_inference.native.runner.llama_weights import LlamaWeights

#: The embedding and the head are in 8 bits even where the layers are in 4: logits come straight from the head, and
#: files in 4 bits keep it finer, too.
END_BITS: Final = 8
#: Vectors of the hidden state are padded to a multiple of this.
_PAD: Final = 64


class PackedModel:
    """`model` for `Library.create`, and all the memory that it points to. `num_bytes`: of the weights."""

    def __init__(
        self, spec: ModelSpec, config: Mapping[str, Any], weights: LlamaWeights, bits: int, cache_bits: int
    ) -> None:
        """Empties `weights`. `bits`: 8, 4 or `FLOAT_BITS`; `cache_bits`: 8 or `FLOAT_BITS`.

        Raises `UnsupportedModelError`, `SourceError` or `OutOfMemoryError`.
        """
        _check(spec)
        end_bits = FLOAT_BITS if bits == FLOAT_BITS else END_BITS
        self._spec = spec
        self._bits = bits
        self._kept: list[torch.Tensor] = []
        self.num_bytes = 0
        table, head = weights.take_ends()
        self._region = Region(_region_bytes(spec, bits, end_bits, tied=head is table))
        layers = (Layer * spec.num_layers)()
        for index, window in enumerate(layer_windows(spec, config)):
            layers[index] = self._layer(f"model.layers.{index}", weights, window or 0)
        frequencies, rope_scale = inverse_frequencies(
            spec.head_dim, spec.rope, int(config.get("max_position_embeddings") or spec.max_position_embeddings)
        )
        embedding = self._matrix(table, bits=end_bits)
        self.model = Model(
            num_layers=spec.num_layers,
            hidden_size=spec.hidden_size,
            inner_size=spec.intermediate_size,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            vocab_size=spec.vocab_size,
            activation=ACTIVATIONS[spec.hidden_act],
            cache_bits=cache_bits,
            norm_epsilon=spec.rms_norm_eps,
            rope_scale=rope_scale,
            frequencies=self._vector(frequencies, 1),
            last_norm=self._vector(weights.take("model.norm.weight"), _PAD),
            layers=ctypes.cast(layers, ctypes.POINTER(Layer)),  # which keeps them alive
            embedding=embedding,
            head=embedding if head is table else self._matrix(head, bits=end_bits),
        )

    def _layer(self, name: str, weights: LlamaWeights, window: int) -> Layer:
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        qkv = [f"{attention}.{letter}_proj" for letter in "qkv"]
        gate_up = [f"{mlp}.{side}_proj" for side in ("gate", "up")]

        def bias(names: list[str]) -> list[torch.Tensor] | None:
            return [weights.take(f"{each}.bias") for each in names] if weights.has(f"{names[0]}.bias") else None

        def linear(names: list[str]) -> Matrix:
            vectors = bias(names)
            matrices = [weights.take(f"{each}.weight") for each in names]
            return self._matrix(torch.cat(matrices), None if vectors is None else torch.cat(vectors))

        both = bias(gate_up)
        gate, up = (weights.take(f"{each}.weight") for each in gate_up)
        return Layer(
            qkv=linear(qkv),
            output=linear([f"{attention}.o_proj"]),
            gate_up=self._matrix(interleave_gate_up(gate, up), None if both is None else interleave_gate_up(*both)),
            down=linear([f"{mlp}.down_proj"]),
            attention_norm=self._vector(weights.take(f"{name}.input_layernorm.weight"), _PAD),
            mlp_norm=self._vector(weights.take(f"{name}.post_attention_layernorm.weight"), _PAD),
            window=window,
        )

    def _matrix(self, weight: torch.Tensor, bias: torch.Tensor | None = None, bits: int | None = None) -> Matrix:
        bits = bits or self._bits
        packed = float_panels(weight) if bits == FLOAT_BITS else pack(round_weight(weight, bits))
        panels = self._region.put(packed)
        self.num_bytes += panels.nbytes
        self._kept.append(panels)
        outs, ins = weight.shape
        at = None if bias is None else self._vector(bias, PANEL)
        return Matrix(panels=panels.data_ptr(), bias=at, outs=outs, ins=ins, bits=bits)

    def _vector(self, values: torch.Tensor, multiple: int) -> int:
        """Address of float32 values, zeros behind them up to a multiple."""
        size = len(values)
        kept = torch.zeros(-(-size // multiple) * multiple)
        kept[:size] = values.float()
        self._kept.append(kept)
        self.num_bytes += kept.nbytes
        return kept.data_ptr()


def _check(spec: ModelSpec) -> None:
    if spec.hidden_act not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"config.json: the activation {spec.hidden_act!r} is not known; known are {', '.join(ACTIVATIONS)}"
        )
    if spec.head_dim % 2:
        raise SourceError(f"config.json: 'head_dim' must be even for rotary embeddings, not {spec.head_dim}")
    if spec.head_dim % HEAD_DIM_STEP or spec.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"config.json: the compiled runner has heads of a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM} "
            f"dimensions, and 'head_dim' is {spec.head_dim}; set `runner: torch`"
        )


def _region_bytes(spec: ModelSpec, bits: int, end_bits: int, *, tied: bool) -> int:
    """Of all matrices, packed."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries = spec.num_heads * spec.head_dim
    shapes = [
        (queries + 2 * spec.num_kv_heads * spec.head_dim, hidden),
        (hidden, queries),
        (2 * (-(-inner // GATE_RUN) * GATE_RUN), hidden),
        (hidden, inner),
    ] * spec.num_layers
    ends = (1 if tied else 2) * packed_bytes(spec.vocab_size, hidden, end_bits)
    return ends + sum(packed_bytes(*shape, bits) for shape in shapes)
