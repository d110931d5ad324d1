"""How `y = x Wᵀ + b (+ residual)` is computed on a device. Knows nothing of checkpoints and models.

    OneDnnKernel   x86 CPUs: the weight is packed once into the blocks that oneDNN's micro-kernels read
    DenseKernel    everything else

Measured on 2 cores with AVX-512 for all 30 layers of the default model, float32, in milliseconds:

    rows          1     2     4     8    16    32    64   256
    F.linear     33    54    44    39    60    85   132   379
    packed       16    18    13    18    23    39    76   262

Four rows are the cheapest: `preferred_rows` tells the runner to pad a smaller step. From two rows on, the packed
kernels also give each row the same bits whatever else is in the batch.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F


class LinearKernel(Protocol):
    """A weight `[out, in]`, owned, and the way to multiply by it."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def preferred_rows(self) -> int:
        """A step with fewer rows is not cheaper than one with this many."""
        ...

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """`x [rows, in]` → `[rows, out]`; adds `residual [rows, out]` where given, which stays unchanged."""
        ...


class DenseKernel:
    """The plain matrix product of the framework."""

    preferred_rows = 1

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    @property
    def num_bytes(self) -> int:
        return tensor_bytes(self._weight, self._bias)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if residual is None:
            return F.linear(x, self._weight, self._bias)
        if self._bias is None:
            return torch.addmm(residual, x, self._weight.t())
        return F.linear(x, self._weight, self._bias).add_(residual)


class OneDnnKernel:
    """oneDNN with a prepacked weight; the residual is added while the result is still in registers."""

    preferred_rows = 4
    #: The number of rows that the packing is chosen for. One row alone would choose a layout that is slow for more.
    _ROWS_HINT = 16

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._num_bytes = tensor_bytes(weight, bias)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, self._ROWS_HINT)
        self._bias = bias

    @staticmethod
    def supports(dtype: torch.dtype, device: torch.device) -> bool:
        """Whether this build and this CPU have such kernels for `dtype`. The operators are the ones that
        `torch.compile` freezes linears to; where a build lacks them, `DenseKernel` serves."""
        if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return False
        if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not hasattr(
            torch.ops.mkldnn, "_reorder_linear_weight"
        ):
            return False
        if dtype == torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return dtype == torch.float32

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        result: torch.Tensor
        if residual is None:
            result = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        else:
            result = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self._bias, "add")
        return result


def make_kernel(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearKernel:
    """The fastest unquantized kernel for the weight's device and dtype."""
    if OneDnnKernel.supports(weight.dtype, weight.device):
        return OneDnnKernel(weight, bias)
    return DenseKernel(weight, bias)


def tensor_bytes(*tensors: torch.Tensor | None) -> int:
    """Bytes that the elements of `tensors` take together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
