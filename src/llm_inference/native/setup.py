"""What a core process is told: a plain struct, computed by the front without torch (see `plan.py`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from llm_inference.native.attention.choice import AttentionName
from llm_inference.native.models.registry import ModelKind
from llm_inference.native.runner.choice import KVCacheDType, RunnerName
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
    kv_cache_dtype: KVCacheDType = "auto"
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_tokens_with_decodes: int | None = None
    block_size: int | None = 16  # None: as the attention likes that the core chooses
    num_kv_blocks: int | None = None  # None: the core measures the device's free memory
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    speculation: SpeculationSetup | None = None
    eos_token_ids: tuple[int, ...] = ()
    num_valid_tokens: int  # ids at and above are padding of the vocabulary and never sampled
    num_threads: int | None = None
    compile: bool = False
    attention: Literal["auto"] | AttentionName = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    count_nodes: bool = False  # a profile is to be made: the openvino runner clocks its nodes
    log_level: str = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
