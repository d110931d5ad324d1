"""Attention of encoders: every token of an input sees all of it. No cache, no positions.

Inputs lie flat, one after the other, shortest first. Neighbours of similar length are padded to the longest of them and
attended together; padding is masked and never leaves this module, so it costs little and changes nothing:

    lengths  5 6 6 │ 40 41        two groups: 3 × 6 and 2 × 41
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

#: A group's longest input is at most so much longer than its shortest.
_MAX_STRETCH = 1.25
_MAX_EXTRA = 4


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows `start` to `end` of the batch. Without padding the three tensors are None."""

    start: int
    end: int
    num_inputs: int
    width: int
    padded_rows: torch.Tensor | None = None  # [num_inputs · width]: which of the group's rows stands there
    real_places: torch.Tensor | None = None  # [end - start]: where each row stands
    mask: torch.Tensor | None = None  # [num_inputs, 1, 1, width], True where there is a token


class BidirectionalAttention:
    """The attention of one batch, the same in all layers."""

    def __init__(self, lengths: Sequence[int], num_heads: int, head_dim: int, device: torch.device) -> None:
        """`lengths`: the inputs' tokens, ascending, none 0."""
        assert list(lengths) == sorted(lengths)
        self._shape = (3, num_heads, head_dim)
        self._groups = _groups(lengths, device)

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """`[rows, 3 · num_heads · head_dim]` → `[rows, num_heads · head_dim]`."""
        parts = [self._attend_group(group, qkv[group.start : group.end]) for group in self._groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_group(self, group: _Group, rows: torch.Tensor) -> torch.Tensor:
        if group.padded_rows is not None:
            rows = rows.index_select(0, group.padded_rows)
        query, key, value = rows.view(group.num_inputs, group.width, *self._shape).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=group.mask)
        flat = attended.transpose(1, 2).reshape(len(rows), -1)
        return flat if group.real_places is None else flat.index_select(0, group.real_places)


def _groups(lengths: Sequence[int], device: torch.device) -> list[_Group]:
    groups: list[_Group] = []
    first = start = 0
    for index in range(1, len(lengths) + 1):
        if index < len(lengths) and lengths[index] <= lengths[first] * _MAX_STRETCH + _MAX_EXTRA:
            continue
        groups.append(_group(start, lengths[first:index], device))
        start, first = groups[-1].end, index
    return groups


def _group(start: int, lengths: Sequence[int], device: torch.device) -> _Group:
    width, end = lengths[-1], start + sum(lengths)
    if lengths[0] == width:
        return _Group(start, end, len(lengths), width)
    sizes = torch.tensor(lengths)
    columns = torch.arange(width)
    real = columns < sizes[:, None]
    firsts = sizes.cumsum(0) - sizes
    padded_rows = torch.where(real, firsts[:, None] + columns, 0).flatten()  # padding: any row, it is masked
    places = real.flatten().nonzero()[:, 0]
    return _Group(
        start, end, len(lengths), width, padded_rows.to(device), places.to(device), real[:, None, None].to(device)
    )
