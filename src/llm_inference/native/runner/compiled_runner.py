"""The runner for quantized weights on CPUs: a step is one call into our own C kernels, over a KV cache of 8 bits.

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
from llm_inference.native.runner.choice import BLOCK_SIZES
from llm_inference.native.runner.compiled.build import find_or_build
from llm_inference.native.runner.compiled.library import Library
from llm_inference.native.runner.compiled.packed_model import PackedModel
from llm_inference.native.runner.compiled.step_arrays import StepArrays
from llm_inference.native.runner.llama_weights import LlamaWeights
from llm_inference.native.stage_clock import StageClock

logger = logging.getLogger(__name__)

BLOCK_SIZE: Final = BLOCK_SIZES["compiled"]
#: Bits of a weight, by `quantization`.
BITS: Final = {"int8": 8, "int4": 4}
#: Bytes of a scale and a minimum, kept beside each token's key and value.
_EXTRA_BYTES: Final = 8

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
        num_threads: int,
        progress: bool = False,
        clock: StageClock | None = None,
        library: Path | None = None,
    ) -> None:
        """Load and pack. `quantization`: "int8" or "int4"; what is not quantized is float32, whatever `dtype` says.

        `library`: instead of the one that is found or built. Raises as `load_model` does, and `StartupError` when
        there is no library.
        """
        bits = BITS.get(quantization or "")
        if bits is None:
            raise UnsupportedModelError(
                f"the compiled runner has weights in {', '.join(BITS)}, not {quantization or 'unquantized ones'}; set "
                "`runner: openvino` or `torch`"
            )
        clock = clock or StageClock()
        refuse_quantized(directory, spec)
        config = read_config(directory)
        loaded = Library(library or find_or_build())
        clock.end("compile")
        with out_of_memory_explained(directory, spec, _CPU):
            weights = LlamaWeights(spec)
            fill_slots(weights, Checkpoint(directory), progress=progress)
            self._packed = PackedModel(spec, config, weights, bits)
            self._native = loaded.create(self._packed.model, num_threads)
        clock.end("weights")
        self._arrays = StepArrays(spec.vocab_size, spec.hidden_size)
        self._cache: PagedKV | None = None
        self._shape = AttentionShape(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim + _EXTRA_BYTES,
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
            quantization,
            loaded.instruction_set,
        )

    @property
    def kv_block_bytes(self) -> int:
        return self._shape.kv_bytes(BLOCK_SIZE, torch.uint8)

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Once, before the first `execute`. Raises `OutOfMemoryError`."""
        assert self._cache is None, "the KV cache is allocated once"
        self._cache = PagedKV(self._shape, num_blocks, BLOCK_SIZE, torch.uint8, _CPU)
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
