"""What other engines say of themselves at their own /metrics, as statistics of ours.

A table of their names by engine; the first name that is there counts. Series of one name are added up (an engine with
several ranks), shares averaged. What an engine does not say is not known, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llm_inference.engine.base import EngineStats

PATH = "/metrics"

_Names = Mapping[str, tuple[str, ...]]
_VLLM: _Names = {
    "num_running": ("vllm:num_requests_running",),
    "num_waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prefix_cache_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_cache_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "num_preemptions": ("vllm:num_preemptions_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "num_drafted_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "num_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "num_steps": ("vllm:iteration_tokens_total_count",),
}
#: By the engine's name: a field of `EngineStats` → its names there.
NAMES: Mapping[str, _Names] = {
    "vllm": _VLLM,
    "sglang": {
        "num_running": ("sglang:num_running_reqs", "sglang_num_running_reqs"),
        "num_waiting": ("sglang:num_queue_reqs", "sglang_num_queue_reqs"),
        "kv_cache_usage": ("sglang:token_usage", "sglang_token_usage"),
        "generation_tokens": ("sglang:generation_tokens_total", "sglang_generation_tokens_total"),
    },
    "tgi": {
        "num_running": ("tgi_batch_current_size",),
        "num_waiting": ("tgi_queue_size",),
        "generation_tokens": ("tgi_request_generated_tokens_sum",),
    },
    "llama.cpp": {
        "num_running": ("llamacpp:requests_processing",),
        "num_waiting": ("llamacpp:requests_deferred",),
        "kv_cache_usage": ("llamacpp:kv_cache_usage_ratio",),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
        "num_steps": ("llamacpp:n_decode_total",),
    },
}
_SHARES = ("kv_cache_usage",)
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?[ \t]+(\S+)")
#: vLLM says in labels how large its KV cache is.
_VLLM_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}[ \t]", re.MULTILINE)
_NUMBER_LABEL = re.compile(r'(?:^|,)(block_size|num_gpu_blocks)="(\d{1,15})"')


def read(engine: str, texts: list[str]) -> EngineStats | None:
    """The statistics that `texts` (of one or more servers of one model) hold; None where they say nothing of it."""
    series: dict[str, list[float]] = {}
    for text in texts:
        for line in text.splitlines():
            found = _SAMPLE.match(line)
            if found:
                try:
                    series.setdefault(found[1], []).append(float(found[2]))
                except ValueError:
                    continue
    known: dict[str, Any] = {}
    for field, names in NAMES.get(engine, {}).items():
        values = next((series[name] for name in names if name in series), None)
        if values is None:
            continue
        total = sum(values)
        if total == total and abs(total) != float("inf"):  # some write NaN before their first request
            known[field] = total / len(values) if field in _SHARES else int(total)
    if engine == "vllm":
        known |= _vllm_cache(texts)
    return EngineStats(**known, known=tuple(known)) if known else None


def _vllm_cache(texts: list[str]) -> dict[str, int]:
    """Blocks of all ranks and servers, and a block's size where it is the same everywhere."""
    caches = [dict(_NUMBER_LABEL.findall(labels)) for text in texts for labels in _VLLM_CACHE.findall(text)]
    sizes = {cache.get("block_size") for cache in caches}
    if not caches or len(sizes) > 1 or not all(len(cache) == 2 for cache in caches):
        return {}
    return {
        "num_kv_blocks": sum(int(cache["num_gpu_blocks"]) for cache in caches),
        "kv_block_size": int(caches[0]["block_size"]),
    }
