"""Attention by the package flashinfer: over the paged cache as it lies, on NVIDIA GPUs.

Its wrappers are told once per step what the batch looks like (`plan`, on the host: it shares the work out among
processors) and then run in every layer. One wrapper for each kind of window, for decodes and for chunks:

    indptr         [sequences + 1] int32: where each one's pages begin in
    indices        [pages] int32, of all sequences one after the other
    last_page_len  [sequences] int32, 1 to block_size
    k, v           ("HND") [blocks, kv heads, block_size, head_dim]: the cache's own layout
    window_left    tokens to the left of the token itself; -1: all

A plan reaches the device by a copy from pinned memory of the wrapper's own, which the next plan writes over: it waits
until that copy is done.

For a CUDA graph a wrapper is bound to a batch size and to buffers for those three arrays, which `plan` overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import torch

from llm_inference.native.attention.base import AttentionShape, PreparedStep
from llm_inference.native.attention.paged_inputs import offsets, pad_decodes, positions
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.batch import ModelInput
from llm_inference.native.transfer import Mark

#: The least workspace, which its documentation recommends; see `workspace_bytes`.
WORKSPACE_BYTES: Final = 128 * 2**20
#: More processors than GPUs have now. Its kernels for several query rows take a tile of them for each of two work items
#: on each processor.
_PROCESSORS: Final = 192
_WORK_ITEMS: Final = 2
#: What each wrapper allocates for itself on the device.
WRAPPER_BYTES: Final = 8 * 2**20 + 2**17
_LAYOUT: Final = "HND"
#: Query heads per key-value head for which decoding one by one is at least as fast as with tensor cores.
_SMALL_GROUPS: Final = (1, 2)


class FlashInferAttention:
    """See `Attention` and `CapturableAttention`."""

    def __init__(
        self,
        shape: AttentionShape,
        cache: PagedKV,
        dtype: torch.dtype,
        device: torch.device,
        *,
        max_model_len: int,
        graph_sizes: Sequence[int] = (),
        library: Any = None,
    ) -> None:
        """`library` None: the installed package. `max_model_len` and `graph_sizes`: of what is captured."""
        self.shape = shape
        self.cache = cache
        self._dtype = dtype
        self._device = device
        self._library = library or import_module("flashinfer")
        self._tensor_cores = shape.num_heads // shape.num_kv_heads not in _SMALL_GROUPS
        size = workspace_bytes(shape.num_heads, shape.num_kv_heads, shape.head_dim, graph_sizes)
        self._workspace = torch.zeros(size, dtype=torch.uint8, device=device)
        self._decode = {window: self._decode_wrapper() for window in set(shape.windows)}
        self._chunks = {
            window: self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, _LAYOUT)
            for window in set(shape.windows)
        }
        self._max_blocks = -(-max_model_len // cache.block_size)
        self._graph_sizes = tuple(graph_sizes)
        self._static: dict[int, dict[int | None, Any]] = {}
        self._page_indices = torch.empty(0, dtype=torch.int32, device=device)
        self._planned = Mark(device)

    @property
    def static_bytes(self) -> int:
        """See `CapturableAttention.static_bytes`."""
        return static_bytes(self._graph_sizes, len(self._decode), self._max_blocks)

    def prepare(self, model_input: ModelInput, num_rows: int) -> PreparedStep:
        """See `Attention.prepare`. Planning comes last, when the page indices are on the device."""
        num_decodes, num_tokens = model_input.num_decodes, len(model_input.token_ids)
        decodes = _Pages.of(model_input, slice(num_decodes), self.cache.block_size)
        chunks = _Pages.of(model_input, slice(num_decodes, None), self.cache.block_size)
        tensors = [
            positions(model_input, num_rows),
            torch.tensor(model_input.slot_mapping),
            decodes.indices,
            chunks.indices,
        ]
        query_offsets = offsets(model_input.query_lens[num_decodes:])

        def arrive(arrived: Sequence[torch.Tensor]) -> FlashInferStep:
            parts: list[_Part] = []
            with self._planning():
                if num_decodes:
                    for window, wrapper in self._decode.items():
                        self._plan_decodes(wrapper, decodes, arrived[2], window)
                    parts.append((0, num_decodes, self._decode))
                if num_tokens > num_decodes:
                    for window, wrapper in self._chunks.items():
                        self._plan_chunks(wrapper, query_offsets, chunks, arrived[3], window)
                    parts.append((num_decodes, num_tokens, self._chunks))
            return FlashInferStep(self, arrived[0], arrived[1], parts)

        return PreparedStep(tensors, arrive)

    def static_inputs(self, model_input: ModelInput, size: int) -> list[torch.Tensor]:
        """See `CapturableAttention.static_inputs`. Plans, into the buffers of this size's wrappers."""
        step = pad_decodes(model_input, size, self.cache.num_blocks - 1, self.cache.block_size)
        pages = _Pages.of(step, slice(None), self.cache.block_size)
        wrappers = self._static_wrappers(size)
        with self._planning():
            for window, wrapper in wrappers.items():
                self._plan_decodes(wrapper, pages, pages.indices, window)
        return [positions(step, size), torch.tensor(step.slot_mapping)]

    def static_step(self, size: int, tensors: Sequence[torch.Tensor]) -> FlashInferStep:
        """See `CapturableAttention.static_step`."""
        return FlashInferStep(self, tensors[0], tensors[1], [(0, size, self._static_wrappers(size))])

    @contextmanager
    def _planning(self) -> Iterator[None]:
        """Steps whose tokens are not read, pieces of a long prompt, are prepared while the last one is still queued."""
        self._planned.wait()
        yield
        self._planned.set()

    def _static_wrappers(self, size: int) -> dict[int | None, Any]:
        if size not in self._static:
            most = max(self._graph_sizes) * self._max_blocks
            if len(self._page_indices) < most:
                assert not self._static, "what a captured graph reads stays where it is"
                self._page_indices = torch.zeros(most, dtype=torch.int32, device=self._device)
            self._static[size] = {window: self._decode_wrapper(size) for window in self._decode}
        return self._static[size]

    def _decode_wrapper(self, size: int | None = None) -> Any:
        make: Callable[..., Any] = self._library.BatchDecodeWithPagedKVCacheWrapper
        if size is None:
            return make(self._workspace, _LAYOUT, use_tensor_cores=self._tensor_cores)
        return make(
            self._workspace,
            _LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=self._tensor_cores,
            paged_kv_indptr_buffer=torch.zeros(size + 1, dtype=torch.int32, device=self._device),
            paged_kv_indices_buffer=self._page_indices,
            paged_kv_last_page_len_buffer=torch.zeros(size, dtype=torch.int32, device=self._device),
        )

    def _plan_decodes(self, wrapper: Any, pages: _Pages, indices: torch.Tensor, window: int | None) -> None:
        shape = self.shape
        wrapper.plan(
            pages.indptr,
            indices,
            pages.last_page_len,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            self.cache.block_size,
            window_left=-1 if window is None else window - 1,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
            sm_scale=shape.scale,
        )

    def _plan_chunks(
        self, wrapper: Any, query_offsets: torch.Tensor, pages: _Pages, indices: torch.Tensor, window: int | None
    ) -> None:
        shape = self.shape
        wrapper.plan(
            query_offsets,
            pages.indptr,
            indices,
            pages.last_page_len,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            self.cache.block_size,
            causal=True,
            sm_scale=shape.scale,
            window_left=-1 if window is None else window - 1,
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )


class FlashInferStep:
    """See `AttentionStep`."""

    def __init__(
        self, attention: FlashInferAttention, positions: torch.Tensor, slots: torch.Tensor, parts: Sequence[_Part]
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
        # Its kernels want rows without gaps.
        queries = qkv[:, :width].contiguous().view(num_rows, shape.num_heads, shape.head_dim)
        window, pages = shape.windows[layer], cache.layer(layer)
        attended = [wrappers[window].run(queries[start:end], pages) for start, end, wrappers in self._parts]
        if len(attended) == 1 and num_tokens == num_rows:
            return attended[0].reshape(num_rows, width)  # type: ignore[no-any-return]
        out = qkv.new_zeros(num_rows, shape.num_heads, shape.head_dim)
        for (start, end, _), rows in zip(self._parts, attended, strict=True):
            out[start:end] = rows
        return out.view(num_rows, width)


#: Rows from and to, and the planned wrapper for each kind of window.
_Part = tuple[int, int, dict[int | None, Any]]


class _Pages:
    """The pages of some sequences, on the host."""

    def __init__(self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor) -> None:
        self.indptr = indptr
        self.indices = indices
        self.last_page_len = last_page_len

    @classmethod
    def of(cls, model_input: ModelInput, sequences: slice, block_size: int) -> _Pages:
        tables, contexts = model_input.block_tables[sequences], model_input.context_lens[sequences]
        return cls(
            offsets([len(table) for table in tables]),
            torch.tensor([block for table in tables for block in table], dtype=torch.int32),
            torch.tensor([(context - 1) % block_size + 1 for context in contexts], dtype=torch.int32),
        )


def workspace_bytes(num_heads: int, num_kv_heads: int, head_dim: int, graph_sizes: Sequence[int]) -> int:
    """For the float32 results of work that is split, shared by all wrappers: a plan that needs more fails.

    Keys are split until each processor has its work items; a recorded batch is split whatever its size. A tile has 128
    rows of queries (64 of wide heads), or few where only decodes are: the heads of a group, of each sequence.
    """
    group = num_heads // num_kv_heads
    rows = [max(_PROCESSORS * _WORK_ITEMS // num_kv_heads, 1) * (128 if head_dim < 256 else 64)]
    tile = 16 if group <= 16 else 64 if group <= 64 else 128
    rows += [(-(-size * group // tile) + size) * tile for size in graph_sizes]
    return max(WORKSPACE_BYTES, num_heads * max(rows) * (head_dim + 1) * 4 + 2**20)


def static_bytes(graph_sizes: Sequence[int], num_windows: int, max_blocks: int) -> int:
    """What the captured batch sizes take: a wrapper for each of them and window, and one array of page indices."""
    return len(graph_sizes) * num_windows * WRAPPER_BYTES + max(graph_sizes, default=0) * max_blocks * 4
