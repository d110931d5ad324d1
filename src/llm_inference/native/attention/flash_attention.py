"""Attention by the package flash-attn (2.x): variable lengths, over the paged cache, on NVIDIA GPUs.

Decodes and chunks are one call each of `flash_attn_varlen_func`, in which a sequence's keys are found through its row
of `block_table`:

    q             [tokens, heads, head_dim]
    k, v          [blocks, block_size, kv heads, head_dim], block_size a multiple of 256; any strides but the last
    cu_seqlens_q  [sequences + 1] int32, cu_seqlens_k likewise, of context lengths
    causal        aligned to the last key; window_size (left, right) without the token itself

With one query token a sequence, the heads of a group are its rows and long contexts are split among processors, so
decodes go apart from chunks. `flash_attn_with_kvcache` is not used: newer versions read the lengths back from the
device in each call, which stalls every layer and cannot be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol, cast

import torch

from llm_inference.native.attention.base import AttentionShape, PreparedStep
from llm_inference.native.attention.choice import FLASH_ATTN_PAGE
from llm_inference.native.attention.paged_inputs import block_table, offsets, pad_decodes, positions
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.batch import ModelInput


class VarlenFunction(Protocol):
    """What is used of `flash_attn_varlen_func`."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **options: Any,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """Sequences that are attended in one call: rows `start` to `end`. The maxima are numbers of the host."""

    start: int
    end: int
    query_offsets: torch.Tensor
    context_offsets: torch.Tensor
    table: torch.Tensor
    max_query: int
    max_context: int


class FlashAttention:
    """See `Attention` and `CapturableAttention`."""

    #: Its accumulators lie in memory that torch manages.
    static_bytes = 0

    def __init__(
        self,
        shape: AttentionShape,
        cache: PagedKV,
        dtype: torch.dtype,
        device: torch.device,
        *,
        max_model_len: int,
        function: VarlenFunction | None = None,
    ) -> None:
        """`function` None: the installed package's. `max_model_len`: of a sequence, for what is captured."""
        assert cache.block_size % FLASH_ATTN_PAGE == 0, "flash-attn reads pages of 256 tokens"
        self.shape = shape
        self.cache = cache
        self._max_blocks = -(-max_model_len // cache.block_size)
        self.function = function or cast(VarlenFunction, import_module("flash_attn").flash_attn_varlen_func)

    def prepare(self, model_input: ModelInput, num_rows: int) -> PreparedStep:
        """See `Attention.prepare`."""
        num_decodes, num_tokens = model_input.num_decodes, len(model_input.token_ids)
        parts = [
            self._part(model_input, slice(first, last), start, end)
            for first, last, start, end in (
                (0, num_decodes, 0, num_decodes),
                (num_decodes, len(model_input.query_lens), num_decodes, num_tokens),
            )
            if last > first
        ]
        tensors = [positions(model_input, num_rows), torch.tensor(model_input.slot_mapping)]
        for part in parts:
            tensors += (part.query_offsets, part.context_offsets, part.table)

        def arrive(arrived: Sequence[torch.Tensor]) -> FlashAttentionStep:
            left = iter(arrived)
            own_positions, slots = next(left), next(left)
            there = [
                replace(part, query_offsets=next(left), context_offsets=next(left), table=next(left)) for part in parts
            ]
            return FlashAttentionStep(self, own_positions, slots, there)

        return PreparedStep(tensors, arrive)

    def static_inputs(self, model_input: ModelInput, size: int) -> list[torch.Tensor]:
        """See `CapturableAttention.static_inputs`."""
        step = pad_decodes(model_input, size, self.cache.num_blocks - 1, self.cache.block_size)
        return [
            positions(step, size),
            torch.tensor(step.slot_mapping),
            offsets(step.query_lens),
            offsets(step.context_lens),
            block_table(step.block_tables, self._max_blocks),
        ]

    def static_step(self, size: int, tensors: Sequence[torch.Tensor]) -> FlashAttentionStep:
        """See `CapturableAttention.static_step`. The longest context that may come is what kernels are sized for."""
        own_positions, slots, query_offsets, context_offsets, table = tensors
        longest = self._max_blocks * self.cache.block_size
        part = _Part(0, size, query_offsets, context_offsets, table, 1, longest)
        return FlashAttentionStep(self, own_positions, slots, [part])

    @staticmethod
    def _part(model_input: ModelInput, sequences: slice, start: int, end: int) -> _Part:
        queries, contexts = model_input.query_lens[sequences], model_input.context_lens[sequences]
        table = block_table(model_input.block_tables[sequences])
        return _Part(start, end, offsets(queries), offsets(contexts), table, max(queries), max(contexts))


class FlashAttentionStep:
    """See `AttentionStep`."""

    def __init__(
        self, attention: FlashAttention, positions: torch.Tensor, slots: torch.Tensor, parts: Sequence[_Part]
    ) -> None:
        self._attention = attention
        self._positions = positions
        self._rows = attention.cache.token_rows(slots)
        self._parts = parts

    @property
    def positions(self) -> torch.Tensor:
        return self._positions

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """See `AttentionStep.attend`. Padding rows come out as zeros."""
        shape, cache = self._attention.shape, self._attention.cache
        num_rows, num_tokens = len(qkv), len(self._rows)
        width = shape.num_heads * shape.head_dim
        cache.write(layer, self._rows, qkv[:num_tokens, width:].view(num_tokens, -1, shape.head_dim))
        queries = qkv[:, :width].view(num_rows, shape.num_heads, shape.head_dim)
        attended = [self._attend(layer, part, queries[part.start : part.end]) for part in self._parts]
        if len(attended) == 1 and num_tokens == num_rows:
            return attended[0].reshape(num_rows, width)
        out = qkv.new_zeros(num_rows, shape.num_heads, shape.head_dim)
        for part, rows in zip(self._parts, attended, strict=True):
            out[part.start : part.end] = rows
        return out.view(num_rows, width)

    def _attend(self, layer: int, part: _Part, queries: torch.Tensor) -> torch.Tensor:
        shape = self._attention.shape
        keys, values = (side.transpose(1, 2) for side in self._attention.cache.layer(layer))
        window = shape.windows[layer]
        return self._attention.function(
            queries,
            keys,
            values,
            part.query_offsets,
            part.context_offsets,
            part.max_query,
            part.max_context,
            softmax_scale=shape.scale,
            causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            block_table=part.table,
        )
