"""int4 weights in groups of 32 inputs, each with a scale and a minimum (as GGUF's Q4_1); activations stay as they are.

The reference: right, and light on memory (5 bits a weight), but the weight is widened again for every product, so it is
slower than an unquantized CPU model that fits.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

from llm_inference.native.layers.kernels import tensor_bytes

GROUP_SIZE: Final = 32


class Int4Kernel:
    """`W[o, i] ≈ minimum[o, g] + scale[o, g] · q[o, i]`, q in 0 … 15, g = i // 32. See `LinearKernel`.

    Two values share a byte, the even input in its low half. Inputs are padded to whole groups.
    """

    preferred_rows = 1

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        out_features, self._in_features = weight.shape
        padding = -self._in_features % GROUP_SIZE
        # Padding repeats the last input, so that it does not widen the last group's range.
        wide = weight.float()
        if padding:
            wide = torch.cat([wide, wide[:, -1:].expand(-1, padding)], dim=1)
        groups = wide.view(out_features, -1, GROUP_SIZE)
        minimum = groups.amin(-1, keepdim=True)
        scale = (groups.amax(-1, keepdim=True) - minimum) / 15
        self._minimum = minimum.to(weight.dtype)
        self._scale = scale.to(weight.dtype)
        # Quantized against the rounded pair that will be used to widen them.
        minimum, scale = self._minimum.float(), self._scale.float()
        divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
        values = torch.round((groups - minimum) / divisor).clamp_(0, 15).to(torch.uint8).view(out_features, -1)
        self._packed = values[:, 0::2] | (values[:, 1::2] << 4)
        self._bias = bias

    @property
    def num_bytes(self) -> int:
        return tensor_bytes(self._packed, self._scale, self._minimum, self._bias)

    def widen(self) -> torch.Tensor:
        """The weight `[out, in]` as it is used."""
        out_features = self._packed.shape[0]
        values = torch.stack((self._packed & 15, self._packed >> 4), dim=-1)
        wide = values.view(out_features, -1, GROUP_SIZE).to(self._scale.dtype)
        return wide.mul_(self._scale).add_(self._minimum).view(out_features, -1)[:, : self._in_features]

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        y = F.linear(x, self.widen(), self._bias)
        return y if residual is None else y.add_(residual)
