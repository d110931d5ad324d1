"""The torch runner with what its device can: which attention, which graphs, compiled or not. Imports torch.

choose (before the weights are read) ─► load ─► [KV cache] ─► first steps ─► record graphs
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from llm_inference.errors import LLMInferenceError, OutOfMemoryError, StartupError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention import flashinfer_attention
from llm_inference.native.attention.choice import (
    AttentionChoice,
    AttentionName,
    AttentionWanted,
    InstalledPackages,
    choose_attention,
    import_error,
)
from llm_inference.native.attention.flash_attention import FlashAttention
from llm_inference.native.attention.flashinfer_attention import FlashInferAttention
from llm_inference.native.attention.torch_attention import TorchAttention
from llm_inference.native.budget import plan_memory
from llm_inference.native.loader import load_model
from llm_inference.native.models.base import CausalLM
from llm_inference.native.plan import memory_needs
from llm_inference.native.runner import layer_compiler
from llm_inference.native.runner.graph_choice import GraphChoice, choose_graphs, graph_bytes
from llm_inference.native.runner.torch_runner import AttentionMaker, TorchRunner
from llm_inference.native.runner.warm_up import BUDGET_S, warm_up
from llm_inference.native.setup import CoreSetup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TorchParts:
    """What was chosen, and what it takes: `reserved_bytes` of the device beside weights, activations and KV blocks."""

    attention: AttentionChoice
    graphs: GraphChoice
    reserved_bytes: int

    @property
    def title(self) -> str:
        """For the report: what is not the same on every device."""
        graphs = f", CUDA graphs up to {self.graphs.sizes[-1]}" if self.graphs.sizes else ""
        return f", attention {self.attention.name}{graphs}"


def choose_parts(setup: CoreSetup, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> TorchParts:
    """Raises `ConfigError` for what is asked for by name and cannot be had."""
    wanted = AttentionWanted(
        device=str(device),
        precision=str(dtype).removeprefix("torch."),
        head_dim=spec.head_dim,
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else None,
        block_size=setup.block_size,
    )
    attention = choose_attention(setup.attention, wanted, InstalledPackages(import_error=import_error))
    graphs = choose_graphs(
        setup.cuda_graphs, device=str(device), attention=attention.name, max_num_seqs=setup.max_num_seqs
    )
    if device.type != "cpu":
        logger.info("attention: %s, because %s", attention.name, attention.reason)
        said = f"of batches up to {graphs.sizes[-1]}" if graphs.sizes else "none"
        logger.info("CUDA graphs: %s, because %s", said, graphs.reason)
    return TorchParts(attention, graphs, _reserved_bytes(setup, spec, attention, graphs, dtype))


def load_runner(
    parts: TorchParts, setup: CoreSetup, spec: ModelSpec, dtype: torch.dtype, device: torch.device
) -> TorchRunner:
    """The model's weights in a runner without a cache yet. Raises `StartupError`."""
    kernel = layer_compiler.compilable_kernels(setup.quantization) if setup.compile else None
    model = load_model(
        Path(setup.model_dir),
        spec,
        dtype=dtype,
        device=device,
        quantization=setup.quantization,
        kernel=kernel,
        progress=False,
    )
    return make_runner(model, parts, max_model_len=setup.max_model_len, compiled=setup.compile)


def make_runner(model: CausalLM, parts: TorchParts, *, max_model_len: int, compiled: bool = False) -> TorchRunner:
    """Of a model that is loaded. `compiled`: its kernels are `compilable_kernels`."""
    if compiled:
        layer_compiler.compile_layers(model)
    return TorchRunner(
        model,
        block_size=parts.attention.block_size,
        make_attention=_MAKERS[parts.attention.name](max_model_len, parts.graphs.sizes),
        min_rows=layer_compiler.MIN_ROWS if compiled else 1,
        graph_sizes=parts.graphs.sizes,
    )


def blocks_on_gpu(
    parts: TorchParts | None, setup: CoreSetup, spec: ModelSpec, dtype: torch.dtype, device: torch.device
) -> int:
    """KV blocks in what is free on the device once the weights are there, by the same arithmetic as on a CPU.

    Raises `OutOfMemoryError`.
    """
    if parts is None or device.type != "cuda":
        raise OutOfMemoryError("the size of the KV cache was not planned for this device")
    free, total = torch.cuda.mem_get_info(device)
    needs = memory_needs(spec, str(dtype).removeprefix("torch."), setup.quantization, setup.max_num_batched_tokens)
    # What sdpa gathers of a layer is, at most, about that layer's share of the cache again.
    gathered = -(-needs.kv_bytes_per_token // spec.num_layers) if parts.attention.name == "sdpa" else 0
    plan = plan_memory(
        replace(
            needs,
            workspace_bytes=needs.workspace_bytes + parts.reserved_bytes,
            kv_bytes_per_token=needs.kv_bytes_per_token + gathered,
        ),
        # The weights are loaded: what they take is no longer free, but counts against the share.
        available_bytes=min(free + needs.weight_bytes, total),
        utilization=setup.gpu_memory_utilization,
        kv_cache_bytes=setup.kv_cache_bytes,
        default_kv_bytes=None,
        max_model_len=setup.max_model_len,
        max_num_seqs=setup.max_num_seqs,
        block_size=parts.attention.block_size,
    )
    logger.info("KV cache: %s", plan.reason)
    return plan.num_kv_blocks


def start(
    runner: TorchRunner, parts: TorchParts, setup: CoreSetup, device: torch.device, num_blocks: int
) -> TorchParts:
    """First steps, in which kernels are made and layers compiled, then the graphs. Raises `StartupError`.

    Returns the parts in use: without graphs, after a warning, where recording fails and nobody asked for them.
    """
    on_gpu = device.type != "cpu"
    if on_gpu or setup.compile:
        try:
            with layer_compiler.compiling() if setup.compile else nullcontext():
                warm_up(
                    runner,
                    block_size=parts.attention.block_size,
                    num_blocks=num_blocks,
                    max_tokens=setup.max_num_batched_tokens,
                    budget_s=math.inf if on_gpu else BUDGET_S,
                )
        except (LLMInferenceError, torch.OutOfMemoryError):
            raise
        except Exception as exc:  # a library that builds its kernels fails in its own ways
            if parts.attention.name == "sdpa":
                raise
            raise StartupError(
                f"attention: {parts.attention.name} fails in its first step ({type(exc).__name__}: {exc}); "
                "set `attention: sdpa`, or another one"
            ) from exc
    try:
        runner.record_graphs()
    except (LLMInferenceError, AssertionError):
        raise
    except Exception as exc:  # an operator that cannot be recorded says so in its own way
        reason = f"recording CUDA graphs failed ({type(exc).__name__}: {exc})"
        if setup.cuda_graphs is True:
            raise StartupError(f"cuda_graphs: true cannot be had: {reason}; set `cuda_graphs: false`") from exc
        logger.warning("%s; every step runs without them", reason)
        return replace(parts, graphs=GraphChoice((), reason))
    return parts


def _reserved_bytes(
    setup: CoreSetup, spec: ModelSpec, attention: AttentionChoice, graphs: GraphChoice, dtype: torch.dtype
) -> int:
    reserved = graph_bytes(
        graphs.sizes,
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
    )
    if graphs.sizes:  # the scratch block
        reserved += attention.block_size * spec.kv_bytes_per_token(str(dtype).removeprefix("torch."))
    if attention.name == "flashinfer":
        max_blocks = -(-setup.max_model_len // attention.block_size)
        # A window more than none is the most that any known model has.
        reserved += flashinfer_attention.workspace_bytes(spec.num_heads, spec.num_kv_heads, spec.head_dim, graphs.sizes)
        reserved += 2 * 2 * flashinfer_attention.WRAPPER_BYTES
        reserved += flashinfer_attention.static_bytes(graphs.sizes, 2 if spec.sliding_window else 1, max_blocks)
    return reserved


def _sdpa(max_model_len: int, graph_sizes: tuple[int, ...]) -> AttentionMaker:
    return TorchAttention


def _flash_attn(max_model_len: int, graph_sizes: tuple[int, ...]) -> AttentionMaker:
    return partial(FlashAttention, max_model_len=max_model_len)


def _flashinfer(max_model_len: int, graph_sizes: tuple[int, ...]) -> AttentionMaker:
    return partial(FlashInferAttention, max_model_len=max_model_len, graph_sizes=graph_sizes)


_MAKERS: Final[dict[AttentionName, Callable[[int, tuple[int, ...]], AttentionMaker]]] = {
    "sdpa": _sdpa,
    "flash_attn": _flash_attn,
    "flashinfer": _flashinfer,
}
