"""int8 weights with one scale per output channel; activations stay as they are.

The reference: right, and light on memory (a quarter of float32), but the weight is widened again for every product, so
it is slower than an unquantized CPU model that fits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llm_inference.native.layers.kernels import tensor_bytes


class Int8Kernel:
    """`W[o, i] ≈ scale[o] · q[o, i]`, q in -127 … 127, `scale = max |W[o]| / 127`. See `LinearKernel`."""

    preferred_rows = 1

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._values, scale = quantize_rows(weight)
        self._scale = scale.to(weight.dtype)
        self._bias = bias

    @property
    def num_bytes(self) -> int:
        return tensor_bytes(self._values, self._scale, self._bias)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        y = F.linear(x, self._values.to(x.dtype)).mul_(self._scale)
        if self._bias is not None:
            y.add_(self._bias)
        return y if residual is None else y.add_(residual)


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[out, in]` → int8 `[out, in]` and float32 scales `[out]`, as `Int8Kernel` says."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1) / 127
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (wide / divisor[:, None]).round_().to(torch.int8), scale
