"""The runner for CPUs: the model as an OpenVINO graph, stepped by our scheduler over a KV cache that we own.

The cache has the layout that the library's paged attention wants, which is the torch runner's too: copying and
clearing blocks is the same code. Logits come back in the library's own memory.

Imports openvino at the top: to be imported only where it is installed and chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import openvino as ov
import torch

from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.base import AttentionShape
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.batch import ModelInput
from llm_inference.native.checkpoint import Checkpoint
from llm_inference.native.loader import fill_slots, out_of_memory_explained, read_config, refuse_quantized
from llm_inference.native.models.llama import layer_windows
from llm_inference.native.runner.choice import KVCacheDType
from llm_inference.native.runner.kv_format import kv_format
from llm_inference.native.runner.llama_weights import LlamaWeights
from llm_inference.native.runner.openvino.compile import compile_graph
from llm_inference.native.runner.openvino.graph import BLOCK_SIZE, build_graph
from llm_inference.native.runner.openvino.node_times import node_seconds
from llm_inference.native.runner.openvino.step_tensors import StepTensors
from llm_inference.native.stage_clock import StageClock
from llm_inference.telemetry.stages import Stages, quiet

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")


class OpenVINORunner:
    """See `Runner`. One owner calls everything, from one thread."""

    def __init__(
        self,
        directory: Path,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        quantization: str | None = None,
        kv_cache_dtype: KVCacheDType = "auto",
        num_threads: int,
        count_nodes: bool = False,
        progress: bool = False,
        clock: StageClock | None = None,
    ) -> None:
        """Load and compile. `dtype`: float32 or bfloat16; `quantization`: None or "int8". `clock` learns both stages.

        Raises as `load_model` does.
        """
        clock = clock or StageClock()
        refuse_quantized(directory, spec)
        config = read_config(directory)
        with out_of_memory_explained(directory, spec, _CPU):
            weights = LlamaWeights(spec)
            fill_slots(weights, Checkpoint(directory), progress=progress)
            kv = kv_format("openvino", str(dtype).removeprefix("torch."), quantization, kv_cache_dtype)
            graph = build_graph(spec, config, weights, quantization, kv)
            clock.end("weights")
            self._request = compile_graph(graph, dtype, kv, num_threads, count_nodes=count_nodes)
            clock.end("compile")
        self._constants = graph.constants
        self._tensors = StepTensors(self._request)
        self._kv_dtype: torch.dtype = getattr(torch, kv.dtype)
        self._cache: PagedKV | None = None
        self._stages: Stages = quiet
        self._counts_nodes = count_nodes
        self._num_runs = 0
        self._shape = AttentionShape(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=kv.width(spec.head_dim),
            scale=spec.head_dim**-0.5,
            windows=layer_windows(spec, config),
        )
        self.vocab_size = spec.vocab_size
        self.weight_bytes = graph.num_bytes
        logger.info(
            "loaded %s: %d parameters, %.0f MiB as %s for openvino %s",
            directory.name,
            spec.num_parameters,
            graph.num_bytes / 2**20,
            quantization or str(dtype).removeprefix("torch."),
            ov.get_version().partition("-")[0],
        )

    @property
    def kv_block_bytes(self) -> int:
        return self._shape.kv_bytes(BLOCK_SIZE, self._kv_dtype)

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Once, before the first `execute`. Raises `OutOfMemoryError`."""
        assert self._cache is None, "the KV cache is allocated once"
        self._cache = PagedKV(self._shape, num_blocks, BLOCK_SIZE, self._kv_dtype, _CPU)
        for layer, sides in enumerate(self._cache.data):
            for name, blocks in zip(("key", "value"), sides, strict=True):
                self._request.set_tensor(f"{name}.{layer}", _shared(blocks))

    def observe(self, stages: Stages) -> None:
        """See `ObservedRunner`."""
        self._stages = stages

    def node_seconds(self) -> Mapping[str, float]:
        """See `ObservedRunner`; empty unless `count_nodes` was asked for."""
        return node_seconds(self._request, self._num_runs) if self._counts_nodes else {}

    @torch.inference_mode()
    def execute(self, model_input: ModelInput) -> torch.Tensor:
        """See `Runner.execute`."""
        return self._run(model_input)[0]

    @torch.inference_mode()
    def execute_with_hidden(self, model_input: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Runner.execute_with_hidden`."""
        return self._run(model_input)

    def _run(self, model_input: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._cache is not None, "allocate_kv_cache comes before execute"
        self._cache.begin_step(model_input)
        self._tensors.fill(model_input)
        with self._stages("library"):
            self._request.infer(share_outputs=True)
        self._num_runs += 1
        return self._output("logits"), self._output("hidden")

    def _output(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._request.get_tensor(name).data)


def _shared(blocks: torch.Tensor) -> ov.Tensor:
    if blocks.dtype == torch.bfloat16:  # which numpy does not have
        return ov.Tensor(blocks.view(torch.int16).numpy(), ov.Shape(list(blocks.shape)), ov.Type.bf16)
    return ov.Tensor(blocks.numpy(), shared_memory=True)
