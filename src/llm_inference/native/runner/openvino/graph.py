"""The Llama family as a graph that computes one step over a paged KV cache which somebody else owns.

    token_ids ─ rows of the embedding ─ layers ─ rows wanted ─ norm ─┬─ the first num_logits of them ─ head ─► logits
                                          ▲                          └─ the others ─────────────────────────► hidden
    past_lens, block tables, key and value cache of each layer

From the last layer's attention on only the wanted rows are computed. The shapes that the nodes have are those that the
library's own fusions look for: heads as `[tokens, heads, 1, head_dim]`, the rotation in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import openvino as ov
import torch
from openvino import opset15 as ops
from openvino.op import _PagedAttentionExtension as PagedAttention

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.layers.rope import inverse_frequencies
from llm_inference.native.models.llama import layer_windows
from llm_inference.native.runner.choice import BLOCK_SIZES
from llm_inference.native.runner.kv_format import KVFormat
from llm_inference.native.runner.llama_weights import LlamaWeights
from llm_inference.native.runner.openvino.weights import Constants, Matrix, Node

BLOCK_SIZE: Final = BLOCK_SIZES["openvino"]
#: Of a cache, by `KVFormat.dtype`.
KV_TYPES: Final = {"float32": ov.Type.f32, "bfloat16": ov.Type.bf16, "uint8": ov.Type.u8}

_ACTIVATIONS: Final[dict[str, Callable[[Node], Node]]] = {
    "silu": ops.swish,
    "swish": ops.swish,
    "gelu": lambda x: ops.gelu(x, "erf"),
    "gelu_new": lambda x: ops.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda x: ops.gelu(x, "tanh"),
    "relu": ops.relu,
}


@dataclass(slots=True)
class Inputs:
    """The parameters of a graph, by name. Their shapes, with T tokens of S sequences in N blocks:

    token_ids, positions [T]; past_lens [S]: tokens of each sequence that the cache holds before the step;
    query_begins [S + 1]: where each sequence's tokens begin in the step; block_ids [N], the tables one after the
    other, and block_begins [S + 1]; max_context_len []; rows [R]: tokens that something is wanted of, num_logits [1] of
    them logits and the others hidden states; key.i, value.i [blocks, kv heads, BLOCK_SIZE, `KVFormat.width`].
    """

    parameters: dict[str, Node] = field(default_factory=dict)

    def add(self, name: str, kind: Any, *shape: int) -> Node:
        """-1 stands for any size."""
        parameter = ops.parameter(ov.PartialShape(list(shape)), kind, name=name)
        parameter.output(0).set_names({name})
        self.parameters[name] = parameter
        return parameter


@dataclass(frozen=True, slots=True)
class Graph:
    """What there is to compile. `num_bytes`: of the weights. `constants` must outlive what is compiled."""

    model: Any
    num_bytes: int
    constants: Constants


def build_graph(
    spec: ModelSpec, config: Mapping[str, Any], weights: LlamaWeights, quantization: str | None, kv: KVFormat
) -> Graph:
    """Empties `weights`. Raises `UnsupportedModelError` or `SourceError` as the model class of the torch runner does.

    `quantization`: None or "int8". The outputs are named `logits` and `hidden`, float32.
    """
    return _Builder(spec, config, weights, quantization, kv).build()


class _Builder:
    def __init__(
        self, spec: ModelSpec, config: Mapping[str, Any], weights: LlamaWeights, quantization: str | None, kv: KVFormat
    ) -> None:
        if spec.hidden_act not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"config.json: the activation {spec.hidden_act!r} is not known; known are {', '.join(_ACTIVATIONS)}"
            )
        if spec.head_dim % 2:
            raise SourceError(f"config.json: 'head_dim' must be even for rotary embeddings, not {spec.head_dim}")
        self._spec = spec
        self._weights = weights
        self._constants = Constants()
        self._make_matrix = self._constants.dense if quantization is None else self._constants.int8
        # A fused matrix is a copy; unquantized ones share the memory of the mapped file instead.
        self._fuses = quantization is not None
        self._kv = kv
        self._windows = layer_windows(spec, config)
        self._frequencies, self._rope_scale = inverse_frequencies(
            spec.head_dim, spec.rope, int(config.get("max_position_embeddings") or spec.max_position_embeddings)
        )
        self._inputs = Inputs()
        self._num_bytes = 0

    def build(self) -> Graph:
        spec, add = self._spec, self._inputs.add
        token_ids = add("token_ids", ov.Type.i64, -1)
        cos, sin = self._rotation(add("positions", ov.Type.i64, -1))
        tables = [add(name, ov.Type.i32, -1) for name in ("past_lens", "query_begins", "block_ids", "block_begins")]
        tables.append(add("max_context_len", ov.Type.i32))
        rows, num_logits = add("rows", ov.Type.i64, -1), add("num_logits", ov.Type.i64, 1)
        table, head = self._ends()
        hidden = table.rows(token_ids)
        for index in range(spec.num_layers):
            is_last = index == spec.num_layers - 1
            hidden = self._layer(index, hidden, (cos, sin), tables, rows if is_last else None)
        hidden = self._norm("model.norm", hidden)
        begin, end, step = (ops.constant(np.array([value], np.int64)) for value in (0, np.iinfo(np.int64).max, 1))
        outputs = {
            "logits": ops.matmul(ops.slice(hidden, begin, num_logits, step), head.whole(), False, True),
            "hidden": ops.slice(hidden, num_logits, end, step),
        }
        results = []
        for name, node in outputs.items():
            result = ops.result(node)
            result.output(0).set_names({name})
            results.append(result)
        return Graph(
            ov.Model(results, list(self._inputs.parameters.values()), "decoder"), self._num_bytes, self._constants
        )

    def _ends(self) -> tuple[Matrix, Matrix]:
        table, head = self._weights.take_ends()
        made = self._matrix(table)
        # Tied: the head is packed for its kernel, so that the one constant becomes two matrices in memory.
        if head is table:
            self._num_bytes += made.num_bytes
            return made, made
        return made, self._matrix(head)

    def _layer(
        self, index: int, hidden: Node, rotation: tuple[Node, Node], tables: list[Node], rows: Node | None
    ) -> Node:
        """`rows`: the tokens to go on with behind the attention; None: all."""
        name = f"model.layers.{index}"
        x = self._norm(f"{name}.input_layernorm", hidden)
        q, k, v = self._queries_keys_values(f"{name}.self_attn", x)
        q, k = self._rotate(q, self._spec.num_heads, rotation), self._rotate(k, self._spec.num_kv_heads, rotation)
        x = self._attention(index, q, k, v, tables)
        if rows is not None:
            axis = ops.constant(np.int64(0))
            x, hidden = ops.gather(x, rows, axis), ops.gather(hidden, rows, axis)
        hidden = ops.add(hidden, self._linear(f"{name}.self_attn.o_proj", x))
        x = self._norm(f"{name}.post_attention_layernorm", hidden)
        gate = _ACTIVATIONS[self._spec.hidden_act](self._linear(f"{name}.mlp.gate_proj", x))
        x = ops.multiply(gate, self._linear(f"{name}.mlp.up_proj", x))
        return ops.add(hidden, self._linear(f"{name}.mlp.down_proj", x))

    def _attention(self, index: int, q: Node, k: Node, v: Node, tables: list[Node]) -> Node:
        """The operation writes keys and values into the cache, then attends."""
        spec = self._spec
        shape = (-1, spec.num_kv_heads, BLOCK_SIZE, self._kv.width(spec.head_dim))
        kind = KV_TYPES[self._kv.dtype]
        caches = [self._inputs.add(f"{name}.{index}", kind, *shape) for name in ("key", "value")]
        *by_sequence, max_context_len = tables
        scale = ops.constant(np.float32(spec.head_dim**-0.5))
        window = ops.constant(np.int32(self._windows[index] or 0))
        inputs = [q, k, v, *caches, *by_sequence, scale, window, _nothing(np.float32), max_context_len, *_unused()]
        node = PagedAttention([_output(each) for each in inputs])
        for key in ("k", "v"):
            node.get_rt_info()[f"{key}_head_size"] = spec.head_dim
            node.get_rt_info()[f"num_{key}_heads"] = spec.num_kv_heads
        return node.output(0)

    def _rotation(self, positions: Node) -> tuple[Node, Node]:
        """Cosine and sine `[T, 1, 1, head_dim]`, each half twice."""
        shape = ops.constant(np.array([-1, 1, 1, 1], np.int64))
        column = ops.reshape(ops.convert(positions, ov.Type.f32), shape, special_zero=False)
        angles = ops.multiply(column, self._constants.share(self._frequencies.view(1, 1, 1, -1)))
        angles = ops.concat([angles, angles], -1)
        cos, sin = ops.cos(angles), ops.sin(angles)
        if self._rope_scale == 1.0:
            return cos, sin
        scale = ops.constant(np.float32(self._rope_scale))
        return ops.multiply(cos, scale), ops.multiply(sin, scale)

    def _rotate(self, x: Node, num_heads: int, rotation: tuple[Node, Node]) -> Node:
        """`[T, heads · head_dim]` → the same, turned by its position."""
        width, half = self._spec.head_dim, self._spec.head_dim // 2
        x = ops.reshape(x, ops.constant(np.array([0, num_heads, 1, width], np.int64)), special_zero=True)
        halves = ops.variadic_split(x, ops.constant(np.int64(3)), ops.constant(np.array([half, half], np.int64)))
        turned = ops.concat([ops.multiply(halves.output(1), ops.constant(np.float32(-1))), halves.output(0)], -1)
        x = ops.add(ops.multiply(x, rotation[0]), ops.multiply(turned, rotation[1]))
        return ops.reshape(x, ops.constant(np.array([0, num_heads * width], np.int64)), special_zero=True)

    def _norm(self, name: str, x: Node) -> Node:
        mean = ops.reduce_mean(ops.power(x, ops.constant(np.float32(2))), ops.constant(np.array([-1], np.int64)), True)
        root = ops.sqrt(ops.add(mean, ops.constant(np.float32(self._spec.rms_norm_eps))))
        x = ops.multiply(x, ops.divide(ops.constant(np.float32(1)), root))
        return ops.multiply(x, self._constants.vector(self._weights.take(f"{name}.weight")))

    def _queries_keys_values(self, name: str, x: Node) -> list[Node]:
        names = [f"{name}.{letter}_proj" for letter in "qkv"]
        if not self._fuses:
            return [self._linear(each, x) for each in names]
        matrices = [self._weights.take(f"{each}.weight") for each in names]
        y = ops.matmul(x, self._matrix(torch.cat(matrices)).whole(), False, True)
        if self._weights.has(f"{names[0]}.bias"):
            y = ops.add(y, self._constants.vector(torch.cat([self._weights.take(f"{each}.bias") for each in names])))
        widths = np.array([len(matrix) for matrix in matrices], np.int64)
        return list(ops.variadic_split(y, ops.constant(np.int64(1)), ops.constant(widths)).outputs())

    def _linear(self, name: str, x: Node) -> Node:
        y = ops.matmul(x, self._matrix(self._weights.take(f"{name}.weight")).whole(), False, True)
        bias = f"{name}.bias"
        return ops.add(y, self._constants.vector(self._weights.take(bias))) if self._weights.has(bias) else y

    def _matrix(self, weight: torch.Tensor) -> Matrix:
        matrix = self._make_matrix(weight)
        self._num_bytes += matrix.num_bytes
        return matrix


def _output(node: Node) -> Any:
    return node if isinstance(node, ov.Output) else node.output(0)


def _nothing(kind: Any, *shape: int) -> Node:
    return ops.constant(np.zeros(shape or (0,), kind))


def _unused() -> list[Node]:
    """Inputs 13 to 27 of the operation, empty: what each would do, if it were not."""
    zero = np.int32(0)
    return [
        _nothing(np.int32),  # sum up attention scores over a window
        *(_nothing(np.int32), _nothing(np.int32), _nothing(np.float32)),  # turn keys that are in the cache already
        *(_nothing(np.float32), ops.constant(zero), ops.constant(zero)),  # leave out blocks of little weight
        _nothing(np.float32, 0, 0, 0, 0),  # attention sinks
        *(ops.constant(zero), *(_nothing(np.int32) for _ in range(3))),  # rank blocks by how they differ
        _nothing(np.int32),  # types of tokens: which see each other both ways
        *(_nothing(np.uint8), _nothing(np.int32)),  # masks between the tokens of a step
    ]
