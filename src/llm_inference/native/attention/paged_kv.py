"""The memory of a paged KV cache: who owns which block is the scheduler's business, not known here.

One tensor `[layer, key or value, block, kv head, offset, head_dim]`. Within a block a head's tokens are contiguous, so
that gathering whole blocks gives `[head, token, head_dim]` matrices without another copy.

    flat rows of a layer, to write one token:   ((kv · blocks + block) · kv_heads + head) · block_size + offset
    flat tiles of a layer, to read a block:      (kv · blocks + block) · kv_heads + head
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llm_inference.errors import OutOfMemoryError
from llm_inference.native.attention.base import AttentionShape
from llm_inference.native.batch import ModelInput


class PagedKV:
    """Keys and values of `num_blocks` blocks of `block_size` tokens."""

    def __init__(
        self,
        shape: AttentionShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        num_scratch_blocks: int = 0,
    ) -> None:
        """`num_scratch_blocks`: behind the others, of no sequence, written by rows that pad a batch.

        Raises `OutOfMemoryError`.
        """
        self.num_blocks = num_blocks + num_scratch_blocks
        self.block_size = block_size
        self.num_kv_heads = shape.num_kv_heads
        head_dim = shape.head_dim
        try:
            # Not zeroed: a CPU's pages are then taken as blocks come into use. See `clear`.
            self._data = torch.empty(
                (shape.num_layers, 2, self.num_blocks, self.num_kv_heads, block_size, head_dim),
                dtype=dtype,
                device=device,
            )
        except RuntimeError as exc:  # torch.OutOfMemoryError is one
            needed = shape.kv_bytes(num_blocks * block_size, dtype)
            raise OutOfMemoryError(
                f"no memory for a KV cache of {num_blocks} blocks ({needed / 2**20:.0f} MiB) on {device}: lower "
                "`gpu_memory_utilization`, `kv_cache_memory` or `max_model_len`, or choose a smaller `precision`"
            ) from exc
        self._rows = [layer.view(-1, head_dim) for layer in self._data]
        self._tiles = [layer.view(-1, block_size * head_dim) for layer in self._data]
        if num_scratch_blocks:
            self.clear(list(range(num_blocks, self.num_blocks)))

    @property
    def head_dim(self) -> int:
        return self._data.shape[-1]

    @property
    def data(self) -> torch.Tensor:
        return self._data

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Its keys and its values, `[blocks, kv heads, block_size, head_dim]`; views."""
        both = self._data[layer]
        return both[0], both[1]

    def begin_step(self, step: ModelInput) -> None:
        """What comes before a step's first write: its block copies, and the clearing of blocks that it starts."""
        self.begin([tensor.to(self._data.device) for tensor in self.changes(step)])

    def changes(self, step: ModelInput) -> list[torch.Tensor]:
        """What `begin` needs for a step, on the host: sources and destinations of copies, and blocks that it starts."""
        sources, destinations = zip(*step.block_copies, strict=True) if step.block_copies else ((), ())
        fresh = [slot // self.block_size for slot in step.slot_mapping if slot % self.block_size == 0]
        return [torch.tensor(ids, dtype=torch.int64) for ids in (sources, destinations, fresh)]

    def begin(self, changes: Sequence[torch.Tensor]) -> None:
        """The same on the device: the copies as if at the same time, then the clearing."""
        sources, destinations, fresh = changes
        if len(sources):
            self._data[:, :, destinations] = self._data[:, :, sources]
        if len(fresh):
            self._data[:, :, fresh] = 0

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy source to destination in all layers, as if at the same time."""
        sources, destinations = (torch.tensor(ids, device=self._data.device) for ids in zip(*pairs, strict=True))
        self._data[:, :, destinations] = self._data[:, :, sources]

    def clear(self, blocks: list[int]) -> None:
        """Zero blocks that are about to get their first token.

        Slots behind a sequence's last token are read and multiplied by a probability of zero. What an earlier owner
        left there does no harm unless it is NaN or infinite, as after an overflow in half precision: 0 · NaN is NaN.
        """
        self._data[:, :, torch.tensor(blocks, device=self._data.device)] = 0

    def write(self, layer: int, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Store `tokens [n, 2 · kv_heads, head_dim]`, keys before values, at `rows [n, 2 · kv_heads]`."""
        self._rows[layer].index_put_((rows,), tokens)

    def gather(self, layer: int, tiles: torch.Tensor, out: torch.Tensor) -> None:
        """Read `tiles [n]` into `out [n, block_size · head_dim]`."""
        torch.index_select(self._tiles[layer], 0, tiles, out=out)

    def token_rows(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows to write for `slots [n]` (`block · block_size + offset`), on their device: int64 `[n, 2 · kv_heads]`."""
        block, offset = slots // self.block_size, slots % self.block_size
        return self.block_tiles(block[:, None])[..., 0].permute(1, 0, 2).flatten(1) * self.block_size + offset[:, None]

    def block_tiles(self, tables: torch.Tensor) -> torch.Tensor:
        """Tiles to read for block tables `[n, blocks]`: int64 `[2, n, kv_heads, blocks]`."""
        sides = torch.arange(2, device=tables.device)[:, None, None, None] * self.num_blocks
        heads = torch.arange(self.num_kv_heads, device=tables.device)[None, None, :, None]
        return (sides + tables[None, :, None, :]) * self.num_kv_heads + heads
