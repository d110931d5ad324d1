"""What a model's layers see of one step: positions, and a way to attend. No block tables, no cache layout.

A model calls `attend` once per layer, in any order it likes; what is the same for all layers (indices, masks) is
built once per step, before the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from llm_inference.native.batch import ModelInput

if TYPE_CHECKING:
    from llm_inference.native.attention.paged_kv import PagedKV


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


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step on the host: the tensors to send over, and what makes a step of them where they have arrived."""

    tensors: Sequence[torch.Tensor]
    arrive: Callable[[Sequence[torch.Tensor]], AttentionStep]


class Attention(Protocol):
    """A way to attend over the paged cache of one device."""

    @property
    def cache(self) -> PagedKV: ...

    def prepare(self, model_input: ModelInput, num_rows: int) -> PreparedStep:
        """`num_rows`: of the step's tensors, at least the scheduled tokens."""
        ...


@runtime_checkable
class CapturableAttention(Attention, Protocol):
    """Optional power: decodes whose every input lies in tensors that stay where they are, so that a CUDA graph of
    them can be replayed. Its cache has a scratch block, which rows that pad a batch write into."""

    @property
    def static_bytes(self) -> int:
        """Memory that it takes on the device beside the static inputs, when all sizes have been captured."""
        ...

    def static_inputs(self, model_input: ModelInput, size: int) -> list[torch.Tensor]:
        """Of a step that only decodes, padded to `size` sequences: host tensors whose shapes depend on `size` alone.

        Also makes ready what the step of this size keeps elsewhere on the device, so it is called before each replay.
        """
        ...

    def static_step(self, size: int, tensors: Sequence[torch.Tensor]) -> AttentionStep:
        """A step that reads `tensors`, the static inputs on the device, anew whenever its kernels run."""
        ...
