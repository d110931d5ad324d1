"""Root-mean-square normalisation (arXiv:1910.07467), computed in float32 whatever the dtype of the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_inference.native.layers.linear import Placement
from llm_inference.native.layers.weights import WeightSlot


class RMSNorm:
    """`y = x / sqrt(mean(x²) + eps) · weight` over the last axis."""

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        self._shape = (size,)
        self._eps = eps
        self.weight = torch.empty(size, dtype=placement.dtype, device=placement.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self._shape, self.weight, self._eps)

    def slots(self, name: str) -> dict[str, WeightSlot]:
        return {f"{name}.weight": WeightSlot(self._shape, self._store)}

    def _store(self, tensor: torch.Tensor) -> None:
        self.weight.copy_(tensor)
