"""Stand-ins for flash-attn and flashinfer: their documented signatures and demands, computed by plain torch on a CPU.

What they refuse the real ones refuse too (types, shapes, page sizes), but for float32, so that results are exact. Names
and defaults of the arguments are compared with those of the real packages in tests/gpu.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


def attend_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, causal: bool, left: int
) -> torch.Tensor:
    """`q [queries, heads, dim]`, `k, v [keys, kv heads, dim]`; the last query is at the last key. `left` -1: all."""
    group = q.shape[1] // k.shape[1]
    k, v = (side.repeat_interleave(group, 1) for side in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * scale
    own = torch.arange(len(q))[:, None] + len(k) - len(q)
    keys = torch.arange(len(k))
    seen = torch.ones(len(q), len(k), dtype=torch.bool)
    if causal:
        seen &= keys <= own
    if left >= 0:
        seen &= keys >= own - left
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, v.double()).to(q.dtype)


@dataclass
class FakeFlashAttn:
    """`flash_attn_varlen_func` over paged keys and values. Notes its calls: (sequences, max_seqlen_q)."""

    calls: list[tuple[int, int]] = field(default_factory=list)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert block_table is not None
        num_sequences = len(cu_seqlens_q) - 1
        self.calls.append((num_sequences, max_seqlen_q))
        assert num_sequences > 0
        for numbers in (cu_seqlens_q, cu_seqlens_k, block_table):
            assert numbers.dtype == torch.int32
            assert numbers.is_contiguous()
        for tensor in (q, k, v):
            assert tensor.stride(-1) == 1
        assert cu_seqlens_k.shape == cu_seqlens_q.shape
        num_pages, page_size, num_kv_heads, head_dim = k.shape
        assert v.shape == k.shape
        assert page_size % 256 == 0
        assert head_dim % 8 == 0
        assert head_dim <= 256
        assert q.shape[1] % num_kv_heads == 0
        assert q.shape[2] == head_dim
        assert block_table.shape[0] == num_sequences
        assert cu_seqlens_q[0] == cu_seqlens_k[0] == 0
        assert cu_seqlens_q[-1] == len(q)
        assert int(cu_seqlens_q.diff().max()) <= max_seqlen_q
        assert int(cu_seqlens_k.diff().max()) <= max_seqlen_k <= block_table.shape[1] * page_size
        assert window_size[1] in (-1, 0)
        out = torch.empty_like(q)
        for row in range(num_sequences):
            start, end = int(cu_seqlens_q[row]), int(cu_seqlens_q[row + 1])
            length = int(cu_seqlens_k[row + 1] - cu_seqlens_k[row])
            pages = block_table[row, : -(-length // page_size)].long()
            assert int(pages.max()) < num_pages
            keys, values = (side[pages].flatten(0, 1)[:length] for side in (k, v))
            scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
            out[start:end] = attend_one(q[start:end], keys, values, scale=scale, causal=causal, left=window_size[0])
        return out


class _Wrapper:
    """What decode and prefill wrappers have in common: a plan of pages, and running it."""

    causal: bool
    sm_scale: float
    window_left: int

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert not float_workspace_buffer.any(), "zero at its first use"
        assert kv_layout in ("NHD", "HND")
        self.kv_layout = kv_layout
        self.num_plans = 0

    def _check(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> None:
        for numbers in (indptr, indices, last_page_len):
            assert numbers.dtype == torch.int32
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        assert len(indptr) == len(last_page_len) + 1
        assert int(indptr.diff().min()) >= 1
        assert int(last_page_len.min()) >= 1
        assert int(last_page_len.max()) <= page_size

    def _run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        query_offsets: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        page_size: int,
    ) -> torch.Tensor:
        k, v = paged_kv_cache
        if self.kv_layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        assert k.shape[1] == page_size
        assert q.is_contiguous()
        assert len(q) == query_offsets[-1]
        out = torch.empty_like(q)
        for row in range(len(indptr) - 1):
            start, end = int(query_offsets[row]), int(query_offsets[row + 1])
            pages = indices[int(indptr[row]) : int(indptr[row + 1])].long()
            length = (len(pages) - 1) * page_size + int(last_page_len[row])
            keys, values = (side[pages].flatten(0, 1)[:length] for side in (k, v))
            out[start:end] = attend_one(
                q[start:end], keys, values, scale=self.sm_scale, causal=self.causal, left=self.window_left
            )
        return out


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """One query token a sequence. With `use_cuda_graph` what it runs on are the buffers alone."""

    causal = False

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.use_cuda_graph = use_cuda_graph
        self.use_tensor_cores = use_tensor_cores
        self.buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        if use_cuda_graph:
            assert paged_kv_indptr_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
    ) -> None:
        self._check(indptr, indices, last_page_len, page_size)
        self.num_plans += 1
        assert num_qo_heads % num_kv_heads == 0
        self.sm_scale = head_dim**-0.5 if sm_scale is None else sm_scale
        self.window_left = window_left
        self.page_size = page_size
        self.q_data_type = q_data_type
        if not self.use_cuda_graph:
            self.buffers = (indptr, indices, last_page_len)
            return
        for buffer, numbers in zip(self.buffers, (indptr, indices, last_page_len), strict=True):
            assert buffer is not None
            assert len(numbers) <= len(buffer)
            buffer[: len(numbers)] = numbers
        assert len(indptr) == len(self.buffers[0])  # type: ignore[arg-type]

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        indptr, indices, last_page_len = self.buffers
        assert indptr is not None
        assert indices is not None
        assert last_page_len is not None
        assert q.dtype == self.q_data_type
        each = torch.arange(len(indptr))
        return self._run(q, paged_kv_cache, each, indptr, indices, last_page_len, self.page_size)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Several query tokens a sequence, the last one at its last key."""

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        assert not use_cuda_graph

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
    ) -> None:
        self._check(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        assert qo_indptr.dtype == torch.int32
        assert len(qo_indptr) == len(paged_kv_indptr)
        self.num_plans += 1
        self.causal = causal
        self.sm_scale = head_dim_qk**-0.5 if sm_scale is None else sm_scale
        self.window_left = window_left
        self.plan_arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        self.q_data_type = q_data_type

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert q.dtype == self.q_data_type
        return self._run(q, paged_kv_cache, *self.plan_arrays)


class FakeFlashInfer:
    """The module, as far as it is used. Keeps what it made."""

    def __init__(self) -> None:
        self.decodes: list[BatchDecodeWithPagedKVCacheWrapper] = []
        self.prefills: list[BatchPrefillWithPagedKVCacheWrapper] = []

    def BatchDecodeWithPagedKVCacheWrapper(self, *args: Any, **options: Any) -> BatchDecodeWithPagedKVCacheWrapper:
        self.decodes.append(BatchDecodeWithPagedKVCacheWrapper(*args, **options))
        return self.decodes[-1]

    def BatchPrefillWithPagedKVCacheWrapper(self, *args: Any, **options: Any) -> BatchPrefillWithPagedKVCacheWrapper:
        self.prefills.append(BatchPrefillWithPagedKVCacheWrapper(*args, **options))
        return self.prefills[-1]
