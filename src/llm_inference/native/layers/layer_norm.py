"""Layer normalisation (arXiv:1607.06450) with weight and bias, as BERT and its kin have it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_inference.native.layers.linear import Placement
from llm_inference.native.layers.weights import WeightSlot


class LayerNorm:
    """`y = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias` over the last axis."""

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        self._shape = (size,)
        self._eps = eps
        self.weight = torch.empty(size, dtype=placement.dtype, device=placement.device)
        self.bias = torch.empty_like(self.weight)

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self._shape, self.weight, self.bias, self._eps)

    def slots(self, name: str) -> dict[str, WeightSlot]:
        return {
            f"{name}.weight": WeightSlot(self._shape, self._store_weight),
            f"{name}.bias": WeightSlot(self._shape, self._store_bias),
        }

    def _store_weight(self, tensor: torch.Tensor) -> None:
        self.weight.copy_(tensor)

    def _store_bias(self, tensor: torch.Tensor) -> None:
        self.bias.copy_(tensor)
