"""Keys that people write, and the keys that are meant: renamed ones by a table, misspelt ones by likeness.

The tables are advice for error messages only; no old name is ever accepted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

Section = Literal["", "api", "model", "generation"]

#: Old or foreign name → what to write instead.
_TOP = {"server": "api", "gateway": "api", "service": "api", "model_list": "models", "engines": "models"}
_API = {
    "prefix": "api_prefix",
    "api_key": "api_keys (a list)",
    "bind": "host",
    "address": "host",
    "listen": "host",
    "cors": "cors_origins",
    "allow_origins": "cors_origins",
    "allowed_origins": "cors_origins",
    "max_body_size": "max_body_bytes",
    "max_request_bytes": "max_body_bytes",
    "timeout": "request_timeout_s",
    "request_timeout": "request_timeout_s",
    "grace": "shutdown_grace_s",
    "shutdown_timeout": "shutdown_grace_s",
    "shutdown_grace": "shutdown_grace_s",
    "max_concurrency": "max_concurrent_requests",
    "num_workers": "workers",
    "socket": "uds",
    "unix_socket": "uds",
    "loglevel": "log_level",
    "rate_limits": "key_limits",
    "limits": "key_limits (of each key) or address_limits (of each client without one)",
    "redis_url": "limits_store",
    "database_url": "key_store",
}
_MODEL = {
    "max_tokens": "max_model_len (prompt and answer together) or generation.max_tokens (the answer alone)",
    "max_seq_len": "max_model_len",
    "max_seq_length": "max_model_len",
    "max_sequence_length": "max_model_len",
    "max_length": "max_model_len",
    "max_context_len": "max_model_len",
    "context_length": "max_model_len",
    "ctx_size": "max_model_len",
    "n_ctx": "max_model_len",
    "model_path": "model",
    "model_dir": "model",
    "model_id": "model",
    "model_name_or_path": "model",
    "path": "model",
    "checkpoint": "model",
    "model_name": "name",
    "served_model_name": "name",
    "backend": "engine",
    "tp": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "tensor_parallel": "tensor_parallel_size",
    "num_shard": "tensor_parallel_size",
    "gpu_memory": "gpu_memory_utilization",
    "gpu_memory_fraction": "gpu_memory_utilization",
    "mem_fraction_static": "gpu_memory_utilization",
    "kv_cache_bytes": "kv_cache_memory",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "kv_cache_size": "kv_cache_memory",
    "cache_dtype": "kv_cache_dtype",
    "kv_dtype": "kv_cache_dtype",
    "prefix_caching": "enable_prefix_caching",
    "speculative_config": "speculation (with method, num_tokens, max_ngram and min_ngram)",
    "speculative_decoding": "speculation",
    "prefix_cache": "enable_prefix_caching",
    "enable_prefix_cache": "enable_prefix_caching",
    "batch_size": "max_batch_size",
    "max_batch_tokens": "max_num_batched_tokens",
    "max_batch_total_tokens": "max_num_batched_tokens",
    "max_concurrent_seqs": "max_num_seqs",
    "load_in_8bit": "`precision: int8`",
    "load_in_4bit": "`precision: int4`",
    "fp16": "`precision: fp16`",
    "bf16": "`precision: bf16`",
    "torch_dtype": "dtype",
    "quant": "quantization",
    "quantize": "quantization",
    "tokenizer_path": "tokenizer",
    "extra_args": "engine_args",
    "tool_call_parser": "tool_parser",
    "torch_compile": "compile",
    "attention_backend": "attention",
    "attn_implementation": "attention",
    "cuda_graph": "cuda_graphs",
    "sampling": "generation",
    "generation_config": "generation",
    "num_replicas": "replicas",
    "base_url": "url",
}
_GENERATION = {
    "temp": "temperature",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "topk": "top_k",
    "topp": "top_p",
}
_RENAMED: dict[Section, dict[str, str]] = {
    "": {**_MODEL, **_TOP},
    "api": _API,
    "model": _MODEL,
    "generation": _GENERATION,
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar of `known`, or None where nothing is similar."""
    close = difflib.get_close_matches(name.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown_key(key: str, section: Section, fields: dict[Section, tuple[str, ...]]) -> str:
    """What to say of `key`, which `section` does not have. `fields` are the known keys of every section."""
    renamed = _RENAMED[section].get(key)
    if renamed is not None:
        return f"this key is called {renamed} here"
    for home, label in (("api", "`api:`"), ("generation", "`generation:`"), ("model", "a model")):
        if home != section and key in fields[home] and not (section == "" and home == "model"):  # type: ignore[index]
            return f"unknown key; it belongs under {label}"
    return unknown_in(key, fields[section])


def unknown_in(key: str, known: tuple[str, ...]) -> str:
    """What to say of `key` in a section whose keys are `known` and which nothing was ever renamed in."""
    close = nearest(key, known)
    if close is not None:
        return f'unknown key; did you mean "{close}"?'
    return f"unknown key; known are {', '.join(known)}"
