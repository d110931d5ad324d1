"""What a core process is told: a plain struct, computed by the front without torch (see `plan.py`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from llm_inference.native.models.registry import ModelKind
from llm_inference.native.runner.choice import RunnerName
from llm_inference.native.speculation import SpeculationSetup


class CoreSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a core needs to load a model and serve it."""

    model_dir: str
    kind: ModelKind = "decoder"
    tokenizer: str | None = None  # where it is not the model's own
    socket_path: str = ""  # empty: in-process
    device: str = "auto"
    precision: str = "auto"
    quantization: str | None = None
    runner: RunnerName = "torch"
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_tokens_with_decodes: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None  # None: the core measures the device's free memory
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    speculation: SpeculationSetup | None = None
    eos_token_ids: tuple[int, ...] = ()
    num_valid_tokens: int  # ids at and above are padding of the vocabulary and never sampled
    num_threads: int | None = None
    compile: bool = False
    log_level: str = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
