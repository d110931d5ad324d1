"""Attention over the paged cache with the framework's own operators, on any device.

Decodes, one query token each: the blocks of all sequences of a bucket are gathered into padded matrices and attended in
one call; the query heads that share a key-value head are the rows of one small matrix, so keys are never expanded.
Prefill chunks: one fused attention per sequence over its gathered context.

A layer costs a handful of calls whatever the number of sequences. The gather copies what it reads, but layer by layer
into the same buffer, which stays in a CPU's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from llm_inference.native.attention.base import AttentionShape, AttentionStep, PreparedStep
from llm_inference.native.attention.buckets import bucket_by_length
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.batch import ModelInput


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences that decode together. `tokens`: their rows in the step; None: rows 0 … size - 1."""

    tokens: torch.Tensor | None
    size: int
    length: int  # padded, in tokens
    tiles: torch.Tensor  # [2 · size · kv_heads · blocks]
    mask: torch.Tensor  # additive; CPU: [size · kv_heads, 1, length], else [size, 1, 1, length]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive tokens of one sequence. `mask` None: causal from the first key on."""

    start: int
    end: int
    length: int  # keys to read; a multiple of the block size, or the exact number if causal
    tiles: torch.Tensor  # [2 · kv_heads · blocks]
    mask: torch.Tensor | None  # [tokens, length], additive


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to attend in a layer with one kind of window."""

    groups: list[_DecodeGroup]
    chunks: list[_Chunk]

    def tensors(self) -> list[torch.Tensor]:
        """What is built on the host."""
        found = [tensor for group in self.groups for tensor in (group.tiles, group.mask, group.tokens)]
        return [tensor for tensor in (*found, *(chunk.tiles for chunk in self.chunks)) if tensor is not None]

    def at(self, arrived: Iterator[torch.Tensor]) -> _Plan:
        """The same with `tensors()` replaced, in their order."""
        groups = [
            replace(
                group,
                tiles=next(arrived),
                mask=next(arrived),
                tokens=None if group.tokens is None else next(arrived),
            )
            for group in self.groups
        ]
        return _Plan(groups, [replace(chunk, tiles=next(arrived)) for chunk in self.chunks])


class TorchAttention:
    """Makes one `TorchAttentionStep` per step. Owns the gather buffer."""

    def __init__(self, shape: AttentionShape, cache: PagedKV, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.cache = cache
        self.dtype = dtype
        self.device = device
        self._buffer = torch.empty(0, dtype=dtype, device=device)

    def begin(self, model_input: ModelInput, num_rows: int) -> AttentionStep:
        """The step, its tensors sent over one by one. `num_rows` ≥ the scheduled tokens."""
        prepared = self.prepare(model_input, num_rows)
        return prepared.arrive([tensor.to(self.device) for tensor in prepared.tensors])

    def prepare(self, model_input: ModelInput, num_rows: int) -> PreparedStep:
        """See `Attention.prepare`. Indices and masks of decodes are built on the host."""
        plans = {window: self._plan(model_input, window) for window in set(self.shape.windows)}
        positions = torch.zeros(num_rows, dtype=torch.int64)
        positions[: len(model_input.positions)] = torch.tensor(model_input.positions)
        rows = self.cache.token_rows(torch.tensor(model_input.slot_mapping))
        if self.device.type == "cpu":
            there = [plans[window] for window in self.shape.windows]
            return PreparedStep((), lambda arrived: TorchAttentionStep(self, positions, rows, there))
        tensors = [positions, rows]
        for plan in plans.values():
            tensors += plan.tensors()

        def arrive(arrived: Sequence[torch.Tensor]) -> TorchAttentionStep:
            left = iter(arrived)
            positions, rows = next(left), next(left)
            moved = {window: plan.at(left) for window, plan in plans.items()}
            return TorchAttentionStep(self, positions, rows, [moved[window] for window in self.shape.windows])

        return PreparedStep(tensors, arrive)

    def buffer(self, num_tiles: int) -> torch.Tensor:
        """`[num_tiles, block_size · head_dim]`, reused from layer to layer and step to step."""
        width = self.cache.block_size * self.shape.head_dim
        if self._buffer.numel() < num_tiles * width:
            self._buffer = torch.empty(num_tiles * width, dtype=self.dtype, device=self.device)
        return self._buffer[: num_tiles * width].view(num_tiles, width)

    def _plan(self, model_input: ModelInput, window: int | None) -> _Plan:
        block_size = self.cache.block_size
        num_decodes = model_input.num_decodes
        # With a window, blocks wholly before the first visible token are not read.
        starts = [
            max(context - query - window + 1, 0) // block_size if window is not None else 0
            for context, query in zip(model_input.context_lens, model_input.query_lens, strict=True)
        ]
        tables = [table[start:] for table, start in zip(model_input.block_tables, starts, strict=True)]
        contexts = [
            context - start * block_size for context, start in zip(model_input.context_lens, starts, strict=True)
        ]
        groups = [
            self._decode_group(
                indices if len(indices) < num_decodes else None,
                [tables[index] for index in indices],
                [contexts[index] for index in indices],
                window,
            )
            for indices in bucket_by_length([len(table) for table in tables[:num_decodes]])
        ]
        chunks = []
        token = num_decodes
        for table, context, query in zip(
            tables[num_decodes:], contexts[num_decodes:], model_input.query_lens[num_decodes:], strict=True
        ):
            chunks.append(self._chunk(token, query, table, context, window))
            token += query
        return _Plan(groups, chunks)

    def _decode_group(
        self, indices: list[int] | None, tables: list[list[int]], contexts: list[int], window: int | None
    ) -> _DecodeGroup:
        size, num_blocks = len(tables), max(map(len, tables))
        length = num_blocks * self.cache.block_size
        # Padded with the sequence's own first block: readable, finite, and masked.
        padded = torch.tensor([table + table[:1] * (num_blocks - len(table)) for table in tables])
        ends = torch.tensor(contexts)[:, None]
        keys = torch.arange(length)
        hidden = keys >= ends
        if window is not None:
            hidden |= keys < ends - window
        mask = torch.zeros(size, 1, 1, length, dtype=self.dtype).masked_fill_(hidden[:, None, None], float("-inf"))
        if self.device.type == "cpu":
            mask = mask.expand(-1, self.shape.num_kv_heads, -1, -1).reshape(-1, 1, length)
        return _DecodeGroup(
            tokens=torch.tensor(indices) if indices is not None else None,
            size=size,
            length=length,
            tiles=self.cache.block_tiles(padded).flatten(),
            mask=mask,
        )

    def _chunk(self, token: int, query: int, table: list[int], context: int, window: int | None) -> _Chunk:
        tiles = self.cache.block_tiles(torch.tensor([table])).flatten()
        if context == query and (window is None or window >= context):
            return _Chunk(token, token + query, context, tiles, None)
        length = len(table) * self.cache.block_size
        keys = torch.arange(length, device=self.device)
        own = torch.arange(context - query, context, device=self.device)[:, None]
        hidden = keys > own
        if window is not None:
            hidden |= keys <= own - window
        mask = torch.zeros(query, length, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))
        return _Chunk(token, token + query, length, tiles, mask)


class TorchAttentionStep:
    """`AttentionStep` over a `PagedKV`."""

    def __init__(
        self, attention: TorchAttention, positions: torch.Tensor, rows: torch.Tensor, plans: Sequence[_Plan]
    ) -> None:
        self._attention = attention
        self._positions = positions
        self._rows = rows
        self._plans = plans

    @property
    def positions(self) -> torch.Tensor:
        return self._positions

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """See `AttentionStep.attend`. Padding rows come out as zeros."""
        attention, num_tokens = self._attention, self._rows.shape[0]
        shape = attention.shape
        width = shape.num_heads * shape.head_dim
        attention.cache.write(
            layer, self._rows, qkv[:num_tokens, width:].view(num_tokens, 2 * shape.num_kv_heads, shape.head_dim)
        )
        queries = qkv[:, :width]
        plan = self._plans[layer]
        num_rows = queries.shape[0]
        if len(plan.groups) == 1 and plan.groups[0].size == num_rows:
            return self._decode(layer, plan.groups[0], queries)
        out = torch.empty(num_rows, width, dtype=qkv.dtype, device=qkv.device)
        for group in plan.groups:
            if group.tokens is None:
                out[: group.size] = self._decode(layer, group, queries[: group.size])
            else:
                out.index_copy_(0, group.tokens, self._decode(layer, group, queries.index_select(0, group.tokens)))
        for chunk in plan.chunks:
            out[chunk.start : chunk.end] = self._prefill(layer, chunk, queries[chunk.start : chunk.end])
        if num_tokens < num_rows:
            out[num_tokens:] = 0
        return out

    def _decode(self, layer: int, group: _DecodeGroup, queries: torch.Tensor) -> torch.Tensor:
        """`queries [size, heads · head_dim]` → the same shape."""
        shape = self._attention.shape
        kv_heads, head_dim = shape.num_kv_heads, shape.head_dim
        keys, values = self._gather(layer, group.tiles, group.size * kv_heads, group.length)
        q = queries.reshape(group.size * kv_heads, -1, head_dim)
        if q.device.type != "cpu":
            q, keys, values = (t.view(group.size, kv_heads, -1, head_dim) for t in (q, keys, values))
            fused = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask, scale=shape.scale)
            return fused.reshape(group.size, -1)
        # Three calls, and still faster on a CPU than the fused operator with its few query rows.
        scores = torch.baddbmm(group.mask, q, keys.transpose(1, 2), alpha=shape.scale)
        if scores.dtype == torch.float32:
            weights = torch.softmax(scores, -1)
        else:
            weights = torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
        return torch.bmm(weights, values).view(group.size, -1)

    def _prefill(self, layer: int, chunk: _Chunk, queries: torch.Tensor) -> torch.Tensor:
        """`queries [tokens, heads · head_dim]` → the same shape."""
        shape = self._attention.shape
        kv_heads, head_dim = shape.num_kv_heads, shape.head_dim
        keys, values = self._gather(layer, chunk.tiles, kv_heads, -1)
        # Each key-value head is a batch entry, seen by its query heads through a stride of zero.
        q = queries.view(len(queries), kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        k, v = (t[:, None, : chunk.length].expand(-1, shape.num_heads // kv_heads, -1, -1) for t in (keys, values))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=shape.scale
        )
        return out.permute(2, 0, 1, 3).reshape(queries.shape)

    def _gather(
        self, layer: int, tiles: torch.Tensor, num_heads: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[num_heads, length, head_dim]`, views of the shared buffer."""
        buffer = self._attention.buffer(tiles.shape[0])
        self._attention.cache.gather(layer, tiles, buffer)
        both = buffer.view(2, num_heads, length, self._attention.shape.head_dim)
        return both[0], both[1]
