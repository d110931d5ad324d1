"""Weights as the kernels read them: rounded in groups of inputs, or as they are, and laid out in panels of 32 outputs.

`linear.c` draws a panel, `linear_float.c` one of floats. Scales and minima are in half precision, and weights are
rounded against them as they are then, not as they were before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

#: Bits of a weight that is not rounded.
FLOAT_BITS: Final = 32
#: Outputs of a panel.
PANEL: Final = 32
#: Inputs of a weight that share a scale, by its bits.
GROUP_SIZES: Final = {8: 64, 4: 32}
#: Inputs of a token that share a scale. Measured on the default model in 8 bits over 12 windows of 128 tokens: mean
#: divergence from float32 is 0.0072 with 32 and 0.0111 with 64, which computes a twentieth faster.
ROUNDED_GROUP: Final = 32
#: Bytes of a panel's group.
GROUP_BYTES: Final = {8: 64 * PANEL + 2 * PANEL, 4: 32 * PANEL // 2 + 4 * PANEL}
#: Rows of gate and up projection alternate in runs of so many, so that a panel holds both of 16 inner values.
GATE_RUN: Final = 16

#: The largest number that half precision has.
_HALF_MAX: Final = 65504.0


@dataclass(frozen=True, slots=True)
class Rounded:
    """A weight `[out, in]` in groups: `values` uint8 `[out, groups, group size]`, `scales` and `minima` float16
    `[out, groups]`; the weight is `minima + scales · values`. In 8 bits there are no minima: `scales · (values - 128)`.

    Inputs are padded with zeros to whole groups.
    """

    values: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor | None

    def widen(self, in_features: int) -> torch.Tensor:
        """float32 `[out, in_features]`, as the kernels compute with it."""
        scales = self.scales.float()[:, :, None]
        if self.minima is None:
            wide = (self.values.float() - 128) * scales
        else:
            wide = self.values.float() * scales + self.minima.float()[:, :, None]
        return wide.flatten(1)[:, :in_features]


def round_weight(weight: torch.Tensor, bits: int) -> Rounded:
    """`[out, in]` of any floating-point type, in `bits` 8 or 4. A group with an infinite number, or one that is none,
    is NaN: a broken file must not look like an answer.
    """
    groups = _in_groups(weight.float(), GROUP_SIZES[bits])
    return _round_8(groups) if bits == 8 else _round_4(groups)


def packed_bytes(out_features: int, in_features: int, bits: int) -> int:
    """What `pack` returns, or of `FLOAT_BITS` what `float_panels` does."""
    num_panels = -(-out_features // PANEL)
    if bits == FLOAT_BITS:
        return num_panels * PANEL * in_features * 4
    return num_panels * -(-in_features // GROUP_SIZES[bits]) * GROUP_BYTES[bits]


def pack(rounded: Rounded) -> torch.Tensor:
    """uint8 `[panels, groups, bytes]`, outputs padded with zeros to whole panels."""
    return _pack_8(rounded) if rounded.minima is None else _pack_4(rounded, rounded.minima)


def interleave_gate_up(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`[inner, …]` twice → `[2 · inner rounded up to GATE_RUN, …]` in alternating runs, zeros behind."""
    inner = len(gate)
    padding = -inner % GATE_RUN
    both = torch.stack((_padded(gate, padding), _padded(up, padding)))
    runs = both.view(2, -1, GATE_RUN, *gate.shape[1:])
    return runs.transpose(0, 1).flatten(0, 2)


def float_panels(weight: torch.Tensor) -> torch.Tensor:
    """`[out, in]` as float32 `[panels, in, 32]`, outputs padded with zeros; a view where that can be."""
    rows = _padded(weight.float(), -len(weight) % PANEL)
    return rows.view(-1, PANEL, weight.shape[1]).transpose(1, 2)


def _in_groups(wide: torch.Tensor, size: int) -> torch.Tensor:
    padding = -wide.shape[1] % size
    if padding:
        wide = torch.cat([wide, wide.new_zeros(len(wide), padding)], dim=1)
    return wide.reshape(len(wide), -1, size)


def _padded(rows: torch.Tensor, padding: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_zeros(padding, *rows.shape[1:])]) if padding else rows


def _round_8(groups: torch.Tensor) -> Rounded:
    scales = (_or_nan(groups.abs().amax(-1)) / 127).clamp_(max=_HALF_MAX).half()
    values = (groups * _inverse(scales)).round_().clamp_(-127, 127).add_(128)
    return Rounded(values.to(torch.uint8), scales, None)


def _round_4(groups: torch.Tensor) -> Rounded:
    minima = _or_nan(groups.amin(-1)).clamp_(-_HALF_MAX, _HALF_MAX).half()
    scales = ((_or_nan(groups.amax(-1)) - minima.float()) / 15).clamp_(0, _HALF_MAX).half()
    values = ((groups - minima.float()[:, :, None]) * _inverse(scales)).round_().clamp_(0, 15)
    return Rounded(values.to(torch.uint8), scales, minima)


def _or_nan(most: torch.Tensor) -> torch.Tensor:
    return most.where(most.isfinite(), math.nan)


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    wide = scales.float()[:, :, None]
    return torch.where(wide > 0, 1 / wide, 0)


def _pack_8(rounded: Rounded) -> torch.Tensor:
    values, scales = _whole_panels(rounded.values), _whole_panels(rounded.scales)
    groups = values.shape[1]
    # Four inputs of an output are one number here, so that whole numbers move: [panel, output, group, quad].
    quads = values.view(torch.int32).view(-1, PANEL, groups, 16).permute(0, 2, 3, 1).contiguous()
    packed = quads.view(torch.uint8).view(-1, groups, 64 * PANEL)
    return torch.cat([packed, _by_panel(scales)], dim=-1)


def _pack_4(rounded: Rounded, minima: torch.Tensor) -> torch.Tensor:
    values = _whole_panels(rounded.values)
    groups = values.shape[1]
    # Eight inputs are two quads, of which the first goes into the low halves of four bytes.
    pairs = values.view(-1, groups, 4, 2, 4)
    nibbles = (pairs[:, :, :, 0] | (pairs[:, :, :, 1] << 4)).contiguous()
    quads = nibbles.view(torch.int32).view(-1, PANEL, groups, 4).permute(0, 2, 3, 1).contiguous()
    packed = quads.view(torch.uint8).view(-1, groups, 16 * PANEL)
    return torch.cat([packed, _by_panel(_whole_panels(rounded.scales)), _by_panel(_whole_panels(minima))], dim=-1)


def _whole_panels(rows: torch.Tensor) -> torch.Tensor:
    return _padded(rows, -len(rows) % PANEL).contiguous()


def _by_panel(halves: torch.Tensor) -> torch.Tensor:
    """`[out, groups]` float16 → the bytes of `[panel, group, output]`."""
    by_panel = halves.view(-1, PANEL, halves.shape[1]).transpose(1, 2).contiguous()
    return by_panel.view(torch.uint8).view(-1, halves.shape[1], 2 * PANEL)
