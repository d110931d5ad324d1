"""What a model's layers see of one step: positions, and a way to attend. No block tables, no cache layout.

A model calls `attend` once per layer, in any order it likes; what is the same for all layers (indices, masks) is
built once per step, before the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a model tells the runner: how to lay out the cache and how its layers look back.

    `windows` has one entry per layer: how many tokens, itself included, a token sees; None: all before it.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    windows: tuple[int | None, ...]

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    def kv_bytes(self, num_tokens: int, dtype: torch.dtype) -> int:
        """Bytes of keys and values of `num_tokens` tokens over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * num_tokens * dtype.itemsize


class AttentionStep(Protocol):
    """One step, seen from a layer. Tokens are flat: all sequences of the batch one after the other."""

    @property
    def positions(self) -> torch.Tensor:
        """`[rows]` int64, on the device. Rows past the scheduled tokens are padding: computed, never read."""
        ...

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Store keys and values of `layer` in the cache, then attend causally within each sequence.

        `qkv [rows, (num_heads + 2 · num_kv_heads) · head_dim]`, positions already applied. Query head h uses
        key-value head `h // (num_heads / num_kv_heads)`. Returns `[rows, num_heads · head_dim]`.
        """
        ...
