"""How a weight lies in a graph: dense, or in 8 bits with scales.

Dense weights share the memory of the tensor they came from, which for safetensors is the mapped file itself. The
library packs the matrices for its kernels while it compiles; the mapped pages behind them are then never read again,
and the system takes them back when it needs memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import openvino as ov
import torch
from openvino import opset15 as ops
from openvino.op import Constant

from llm_inference.native.quantization.int8 import quantize_rows

#: A node of a graph, or one of its outputs; the library's stubs do not say which functions take which.
Node: TypeAlias = Any

#: Inputs of an int8 row that share a scale. Measured on the default model over 14 windows of 128 tokens (documents,
#: licences, library source), with activations in groups of 32: mean divergence from float32 and agreement of the best
#: token are 0.0104 and 92.9 % for whole rows, 0.0082 and 93.5 % for 192, 0.0071 and 93.9 % for 64, 0.0062 and 94.9 %
#: for 32. 64 took as long as whole rows; 32 looked a fifth slower, on a busy machine.
GROUP_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight `[out, in]` in a graph, or `[out, groups, in / groups]` with scales `[out, groups, 1]`."""

    values: Node
    scales: Node | None
    num_bytes: int

    def whole(self) -> Node:
        """float32 `[out, in]`. Widened by the kernel that multiplies by it, not in memory."""
        return self._wide(self.values, self.scales)

    def rows(self, indices: Node) -> Node:
        """`indices [n]` → float32 `[n, in]`."""
        axis = ops.constant(np.int64(0))
        scales = None if self.scales is None else ops.gather(self.scales, indices, axis)
        return self._wide(ops.gather(self.values, indices, axis), scales)

    def _wide(self, values: Node, scales: Node | None) -> Node:
        wide = values if values.get_element_type() == ov.Type.f32 else ops.convert(values, ov.Type.f32)
        if scales is None:
            return wide
        in_features = math.prod(self.values.shape[1:])
        shape = ops.constant(np.array([0, in_features], np.int64))
        return ops.reshape(ops.multiply(wide, scales), shape, special_zero=True)


class Constants:
    """Makes constants that share the memory of tensors. Must live as long as what is compiled from them."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def share(self, tensor: torch.Tensor) -> Node:
        """`tensor` is contiguous."""
        if tensor.dtype != torch.bfloat16:
            return ops.constant(tensor.numpy(), shared_memory=True)
        # numpy does not have it, and the other way to share memory does not keep it alive.
        self._tensors.append(tensor)
        data = ov.Tensor(tensor.view(torch.int16).numpy(), ov.Shape(list(tensor.shape)), ov.Type.bf16)
        return Constant(data, shared_memory=True)

    def vector(self, tensor: torch.Tensor) -> Node:
        """A norm's weight or a bias, float32."""
        return self.share(tensor.float())

    def dense(self, weight: torch.Tensor) -> Matrix:
        """As it is."""
        return Matrix(self.share(weight), None, weight.nbytes)

    def int8(self, weight: torch.Tensor) -> Matrix:
        """One scale for each `GROUP_SIZE` inputs of a row, or for the row where they do not divide it."""
        out_features, in_features = weight.shape
        size = GROUP_SIZE if in_features % GROUP_SIZE == 0 else in_features
        values, scales = quantize_rows(weight.reshape(-1, size))
        shape = (out_features, in_features // size)
        values, scales = values.view(*shape, size), scales.view(*shape, 1)
        return Matrix(self.share(values), self.share(scales), values.nbytes + scales.nbytes)
