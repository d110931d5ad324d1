"""The runner of our own C kernels on CPUs: a step is one call into them, with weights in 8 or 4 bits or in float32.

A token's result does not depend on the rest of the batch, to the bit: see `compiled/step.h`. The library releases the
interpreter while it computes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import torch

from llm_inference.errors import UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.base import AttentionShape
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.batch import ModelInput
from llm_inference.native.checkpoint import Checkpoint
from llm_inference.native.loader import fill_slots, out_of_memory_explained, read_config, refuse_quantized
from llm_inference.native.models.llama import layer_windows
from llm_inference.native.runner.choice import BLOCK_SIZES, KVCacheDType
from llm_inference.native.runner.compiled.build import find_or_build
from llm_inference.native.runner.compiled.library import Library
from llm_inference.native.runner.compiled.packed_model import PackedModel
from llm_inference.native.runner.compiled.packing import FLOAT_BITS
from llm_inference.native.runner.compiled.step_arrays import StepArrays
from llm_inference.native.runner.kv_format import kv_format
from llm_inference.native.runner.llama_weights import LlamaWeights
from llm_inference.native.stage_clock import StageClock

logger = logging.getLogger(__name__)

BLOCK_SIZE: Final = BLOCK_SIZES["compiled"]
#: Bits of a weight, by `quantization`.
BITS: Final = {None: FLOAT_BITS, "int8": 8, "int4": 4}
_CACHE_BITS: Final = {"uint8": 8, "float32": FLOAT_BITS}

_CPU = torch.device("cpu")


class CompiledRunner:
    """See `Runner`. One owner calls everything, from one thread."""

    def __init__(
        self,
        directory: Path,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        quantization: str | None,
        kv_cache_dtype: KVCacheDType = "auto",
        num_threads: int,
        progress: bool = False,
        clock: StageClock | None = None,
        library: Path | None = None,
    ) -> None:
        """Load and pack. `quantization`: "int8", "int4" or None; what is not rounded is float32, whatever `dtype` says.

        `library`: instead of the one that is found or built. Raises as `load_model` does, and `StartupError` when
        there is no library.
        """
        if quantization not in BITS:
            raise UnsupportedModelError(
                f"the compiled runner has weights in float32, {' and '.join(filter(None, BITS))}, not {quantization}; "
                "set `runner: openvino` or `torch`"
            )
        kv = kv_format("compiled", "float32", quantization, kv_cache_dtype)
        clock = clock or StageClock()
        refuse_quantized(directory, spec)
        config = read_config(directory)
        loaded = Library(library or find_or_build())
        clock.end("compile")
        with out_of_memory_explained(directory, spec, _CPU):
            weights = LlamaWeights(spec)
            fill_slots(weights, Checkpoint(directory), progress=progress)
            self._packed = PackedModel(spec, config, weights, BITS[quantization], _CACHE_BITS[kv.dtype])
            self._native = loaded.create(self._packed.model, num_threads)
        clock.end("weights")
        self._arrays = StepArrays(spec.vocab_size, spec.hidden_size)
        self._cache: PagedKV | None = None
        self._kv_dtype: torch.dtype = getattr(torch, kv.dtype)
        self._shape = AttentionShape(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=kv.width(spec.head_dim),
            scale=spec.head_dim**-0.5,
            windows=layer_windows(spec, config),
        )
        self.vocab_size = spec.vocab_size
        self.weight_bytes = self._packed.num_bytes
        logger.info(
            "loaded %s: %d parameters, %.0f MiB as %s for compiled kernels (%s)",
            directory.name,
            spec.num_parameters,
            self.weight_bytes / 2**20,
            quantization or "float32",
            loaded.instruction_set,
        )

    @property
    def kv_block_bytes(self) -> int:
        return self._shape.kv_bytes(BLOCK_SIZE, self._kv_dtype)

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Once, before the first `execute`. Raises `OutOfMemoryError`."""
        assert self._cache is None, "the KV cache is allocated once"
        self._cache = PagedKV(self._shape, num_blocks, BLOCK_SIZE, self._kv_dtype, _CPU)
        self._native.set_cache(self._cache.data.data_ptr(), num_blocks)

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
        if model_input.block_copies:
            self._cache.copy_blocks(model_input.block_copies)
        outputs = self._arrays.fill(model_input)
        self._native.run(self._arrays.step)
        return outputs
