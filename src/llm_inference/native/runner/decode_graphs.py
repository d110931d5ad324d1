"""Steps that only decode, recorded once for a few batch sizes and replayed: one launch instead of hundreds.

    a step of 13 decodes ─► padded to 16 ─► one copy into the static inputs ─► replay ─► logits of 13 rows
                              3 rows that write into the scratch block

All sizes write their logits into one tensor: what a graph gave back itself would stay allocated beside that of every
other size. Whatever else is in a step (a chunk of a prompt, drafts, hidden states, more sequences than the largest
size) runs it eagerly; who runs it does not change what comes out. Knows nothing of CUDA but in `CudaCapture`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from llm_inference.errors import OutOfMemoryError
from llm_inference.native.attention.base import CapturableAttention
from llm_inference.native.attention.paged_inputs import padded
from llm_inference.native.batch import ModelInput
from llm_inference.native.models.base import CausalLM
from llm_inference.native.transfer import StaticParcel

logger = logging.getLogger(__name__)


class Capture(Protocol):
    """Records `run`, whose inputs and results lie in tensors that stay where they are. Gives what runs it again."""

    def __call__(self, run: Callable[[], None]) -> Callable[[], object]: ...


class CudaCapture:
    """By CUDA graphs, all in one pool of memory: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, run: Callable[[], None]) -> Callable[[], object]:
        with torch.cuda.device(self._device):
            # Once beside: libraries allocate and choose kernels at a first call, which must not be recorded.
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                run()
            torch.cuda.current_stream().wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                run()
            self._pool = self._pool or graph.pool()
        return graph.replay


@dataclass(frozen=True, slots=True)
class _Graph:
    inputs: StaticParcel
    replay: Callable[[], object]


class DecodeGraphs:
    """The graphs of one model. Not usable before `capture_all`."""

    def __init__(
        self,
        model: CausalLM,
        attention: CapturableAttention,
        sizes: Sequence[int],
        device: torch.device,
        capture: Capture,
    ) -> None:
        """`sizes`: ascending, not empty. The attention's cache has a scratch block."""
        self._model = model
        self._attention = attention
        self._sizes = tuple(sizes)
        self._device = device
        self._capture = capture
        self._graphs: dict[int, _Graph] = {}
        self._logits = torch.empty(0)

    def capture_all(self) -> None:
        """Record every size, the largest first: the smaller ones find room in its memory. Raises `OutOfMemoryError`."""
        begun = time.monotonic()
        before = self._allocated()
        try:
            shape = (self._sizes[-1], self._model.vocab_size)
            self._logits = torch.empty(shape, dtype=torch.float32, device=self._device)
            for size in reversed(self._sizes):
                self._graphs[size] = self._record(size)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemoryError(
                f"no memory for CUDA graphs of {len(self._sizes)} batch sizes up to {self._sizes[-1]} on "
                f"{self._device}: lower `gpu_memory_utilization` or `max_num_seqs`, or set `cuda_graphs: false`"
            ) from exc
        logger.info(
            "CUDA graphs of %d batch sizes up to %d: %.1f s, %.0f MiB",
            len(self._sizes),
            self._sizes[-1],
            time.monotonic() - begun,
            (self._allocated() - before) / 2**20,
        )

    def takes(self, step: ModelInput) -> bool:
        """Whether a graph can run it: nothing but decodes, logits of each, and not too many."""
        num_sequences = len(step.query_lens)
        return (
            0 < num_sequences == step.num_decodes == len(step.logits_indices) <= self._sizes[-1]
            and not step.hidden_indices
        )

    def run(self, step: ModelInput) -> torch.Tensor:
        """Float32 logits `[decodes, vocab_size]`, overwritten by the next replay. The cache has begun the step."""
        num_sequences = len(step.query_lens)
        size = next(size for size in self._sizes if size >= num_sequences)
        graph = self._graphs[size]
        graph.inputs.fill(self._inputs(step, size))
        graph.replay()
        return self._logits[:num_sequences]

    def _inputs(self, step: ModelInput, size: int) -> list[torch.Tensor]:
        return [padded(step.token_ids, size), *self._attention.static_inputs(step, size)]

    def _record(self, size: int) -> _Graph:
        nothing = ModelInput([], [], [], [], [], [], [], [], 0)
        inputs = StaticParcel(self._inputs(nothing, size), self._device)
        token_ids, *others = inputs.tensors

        def run() -> None:
            # The step is made inside, since what it computes of its inputs belongs to the graph.
            step = self._attention.static_step(size, others)
            self._logits[:size].copy_(self._model.logits(self._model.forward(token_ids, step)))

        return _Graph(inputs, self._capture(run))

    def _allocated(self) -> int:
        """Bytes of the device that are taken, by whomever."""
        if self._device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free
