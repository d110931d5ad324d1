"""A linear layer that may hold several projections of the same input, fused into one matrix.

    q_proj [out_q, in] ┐
    k_proj [out_k, in] ├─► one weight [out_q + out_k + out_v, in] ─► a kernel ─► one product per step
    v_proj [out_v, in] ┘

Knows nothing of attention or checkpoints' names. The dense weight lives only until its last part has arrived; then the
kernel (packed, quantized or plain) owns what is left of it, so that loading needs one layer more than the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from llm_inference.native.layers.kernels import LinearKernel, make_kernel
from llm_inference.native.layers.weights import RowOrder, WeightSlot

KernelFactory: TypeAlias = Callable[[torch.Tensor, torch.Tensor | None], LinearKernel]


@dataclass(frozen=True, slots=True)
class Placement:
    """In which format and where a layer computes, and who makes its kernel."""

    dtype: torch.dtype
    device: torch.device
    kernel: KernelFactory = make_kernel


class Linear:
    """`y = x Wᵀ + b`, `W [sum(out_features), in_features]`. Unusable until every slot has been filled."""

    def __init__(
        self, in_features: int, out_features: Sequence[int], *, bias: bool = False, placement: Placement
    ) -> None:
        self.in_features = in_features
        self.out_features = tuple(out_features)
        self._placement = placement
        self._has_bias = bias
        self._weight: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        self._num_missing = len(self.out_features) * (2 if bias else 1)
        self._kernel: LinearKernel | None = None

    @property
    def kernel(self) -> LinearKernel:
        assert self._kernel is not None, "a weight of this layer was never loaded"
        return self._kernel

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """`x [rows, in]` → `[rows, sum(out)]`, plus `residual` where given."""
        return self._kernel(x, residual)  # type: ignore[misc]

    def slots(self, names: Sequence[str], orders: Sequence[RowOrder | None] | None = None) -> dict[str, WeightSlot]:
        """Slots of the parts, `names[i] + ".weight"` (and `".bias"`) for `out_features[i]`, rows put in `orders[i]`."""
        slots: dict[str, WeightSlot] = {}
        start = 0
        for index, (name, rows) in enumerate(zip(names, self.out_features, strict=True)):
            order = orders[index] if orders is not None else None
            slots[f"{name}.weight"] = WeightSlot((rows, self.in_features), self._store_weight(start, rows, order))
            if self._has_bias:
                slots[f"{name}.bias"] = WeightSlot((rows,), self._store_bias(start, rows, order))
            start += rows
        return slots

    def _store_weight(self, start: int, rows: int, order: RowOrder | None) -> Callable[[torch.Tensor], None]:
        def store(tensor: torch.Tensor) -> None:
            if self._weight is None:
                self._weight = self._empty(sum(self.out_features), self.in_features)
            self._weight[start : start + rows].copy_(order(tensor) if order else tensor)
            self._count()

        return store

    def _store_bias(self, start: int, rows: int, order: RowOrder | None) -> Callable[[torch.Tensor], None]:
        def store(tensor: torch.Tensor) -> None:
            if self._bias is None:
                self._bias = self._empty(sum(self.out_features))
            self._bias[start : start + rows].copy_(order(tensor) if order else tensor)
            self._count()

        return store

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._placement.dtype, device=self._placement.device)

    def _count(self) -> None:
        self._num_missing -= 1
        if self._num_missing == 0:
            assert self._weight is not None
            self._kernel = self._placement.kernel(self._weight, self._bias)
            self._weight = self._bias = None
