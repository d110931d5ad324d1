"""The reference runner: a model and its paged KV cache on one device, executed by torch.

What a step needs goes to a GPU in one asynchronous copy; nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from llm_inference.native.attention.base import Attention, AttentionShape, CapturableAttention
from llm_inference.native.attention.paged_inputs import padded
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.attention.staged import StagedAttention
from llm_inference.native.attention.torch_attention import TorchAttention
from llm_inference.native.batch import ModelInput
from llm_inference.native.models.base import CausalLM
from llm_inference.native.runner.decode_graphs import Capture, CudaCapture, DecodeGraphs
from llm_inference.native.transfer import Courier
from llm_inference.telemetry.stages import Stages, quiet


def round_up_rows(num_rows: int) -> int:
    """One of a few sizes, at most a quarter larger.

    oneDNN keeps a program for each number of rows and layer shape that it has met, up to a thousand of them, of about
    a megabyte each; and making one takes a millisecond. So a CPU computes steps of some 45 sizes, not of any size.
    """
    for limit, grain in ((16, 1), (64, 4), (256, 16)):
        if num_rows <= limit:
            return -(-num_rows // grain) * grain
    return -(-num_rows // 32) * 32


class AttentionMaker(Protocol):
    """Makes the attention of a model's layers over a cache that has been allocated."""

    def __call__(
        self, shape: AttentionShape, cache: PagedKV, dtype: torch.dtype, device: torch.device
    ) -> Attention: ...


class TorchRunner:
    """See `Runner`. One owner calls everything, from one thread."""

    def __init__(
        self,
        model: CausalLM,
        *,
        block_size: int,
        make_attention: AttentionMaker = TorchAttention,
        min_rows: int = 1,
        graph_sizes: Sequence[int] = (),
        capture: Capture | None = None,
    ) -> None:
        """`min_rows`: of a step's tensors. `graph_sizes`: batches of decodes to record with `capture`, None: as CUDA
        graphs; the attention is then a `CapturableAttention`."""
        self._model = model
        self._block_size = block_size
        self._device = model.placement.device
        self._make_attention = make_attention
        self._min_rows = max(min_rows, model.preferred_rows)
        self._graph_sizes = tuple(graph_sizes)
        self._capture = capture
        self._courier = Courier(self._device)
        self._attention: Attention | None = None
        self._graphs: DecodeGraphs | None = None
        self._stages: Stages = quiet

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def block_size(self) -> int:
        """Tokens in a block of the cache."""
        return self._block_size

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self._model.num_bytes

    @property
    def kv_block_bytes(self) -> int:
        return self._model.attention_shape.kv_bytes(self._block_size, self._model.placement.dtype)

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Once, before the first `execute`. One more block where graphs are recorded. Raises `OutOfMemoryError`."""
        assert self._attention is None, "the KV cache is allocated once"
        shape, dtype = self._model.attention_shape, self._model.placement.dtype
        num_scratch = 1 if self._graph_sizes else 0
        cache = PagedKV(shape, num_blocks, self._block_size, dtype, self._device, num_scratch_blocks=num_scratch)
        self._attention = self._make_attention(shape, cache, dtype, self._device)

    @torch.inference_mode()
    def record_graphs(self) -> None:
        """Once, before the first request, if there are sizes to record. Raises `OutOfMemoryError`."""
        if self._graph_sizes:
            assert isinstance(self._attention, CapturableAttention), "this attention cannot be recorded"
            capture = self._capture or CudaCapture(self._device)
            graphs = DecodeGraphs(self._model, self._attention, self._graph_sizes, self._device, capture)
            graphs.capture_all()
            self._graphs = graphs

    def observe(self, stages: Stages) -> None:
        """See `ObservedRunner`. A step that is replayed has no stages of its own."""
        self._stages = stages

    def node_seconds(self) -> Mapping[str, float]:
        """Nothing: torch's own profiler sees every operator."""
        return {}

    @torch.inference_mode()
    def execute(self, model_input: ModelInput) -> torch.Tensor:
        """See `Runner.execute`."""
        if self._graphs is not None and self._graphs.takes(model_input):
            self._begin_replay(model_input)
            return self._graphs.run(model_input)
        return self._execute(model_input)[0]

    @torch.inference_mode()
    def execute_with_hidden(self, model_input: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Runner.execute_with_hidden`."""
        return self._execute(model_input)

    def _execute(self, model_input: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and hidden states where they are wanted."""
        attention = self._attention
        assert attention is not None, "allocate_kv_cache comes before execute"
        num_rows = self._num_rows(len(model_input.token_ids))
        num_wanted = len(model_input.logits_indices)
        prepared = attention.prepare(model_input, num_rows)
        changes = attention.cache.changes(model_input)
        tensors = (
            padded(model_input.token_ids, num_rows),
            padded(model_input.logits_indices, self._num_rows(num_wanted) if num_wanted else 0),
            padded(model_input.hidden_indices, len(model_input.hidden_indices)),
            *changes,
            *prepared.tensors,
        )
        token_ids, wanted, wanted_hidden, *others = self._courier.send(tensors)
        attention.cache.begin(others[: len(changes)])
        step = prepared.arrive(others[len(changes) :])
        if self._stages is not quiet:
            step = StagedAttention(step, self._stages)
        hidden = self._model.forward(token_ids, step)
        states = hidden.index_select(0, wanted_hidden).float() if model_input.hidden_indices else hidden[:0]
        if not num_wanted:
            return torch.empty(0, self.vocab_size, device=self._device), states
        return self._model.logits(hidden.index_select(0, wanted))[:num_wanted], states

    def _begin_replay(self, model_input: ModelInput) -> None:
        """Copies and fresh blocks, which few steps have: they cost a copy of their own."""
        assert self._attention is not None
        changes = self._attention.cache.changes(model_input)
        if any(map(len, changes)):
            self._attention.cache.begin(self._courier.send(changes))

    def _num_rows(self, num_wanted: int) -> int:
        num_rows = max(num_wanted, self._min_rows)
        return round_up_rows(num_rows) if self._device.type == "cpu" else num_rows
