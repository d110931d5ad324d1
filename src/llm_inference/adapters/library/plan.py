"""What a library engine's front needs to know, as plain data: the parent writes it down for further gateway workers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import GenerationDefaults, ModelInfo
from llm_inference.errors import ConfigError
from llm_inference.model_spec import read_generation_config

WORKERS = Path(__file__).with_name("workers")
SERVING = WORKERS / "serving.py"

#: Keys that are ours to do, whichever library runs.
_COMMON = frozenset(
    {"name", "aliases", "model", "engine", "engine_args", "precision", "dtype", "quantization", "max_model_len"}
    | {"tokenizer", "chat_template", "trust_remote_code", "max_num_seqs", "max_num_batched_tokens", "max_batch_size"}
    | {"kv_cache_memory", "device", "generation", "warmup", "tool_parser", "reasoning_parser"}
)


class LibraryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`argv` runs the worker, but for the setup file that is its last argument; `setup` is what that file says."""

    info: ModelInfo
    defaults: GenerationDefaults
    eos_token_ids: tuple[int, ...]
    argv: tuple[str, ...]
    setup: dict[str, Any]
    env: dict[str, str] = {}


def worker_argv(python: Path, worker: str) -> tuple[str, ...]:
    """`worker` names a file of `workers/`, or is the path of another."""
    # Unbuffered, so that a worker's last words are not lost with it.
    return (str(python), "-u", str(SERVING), str(WORKERS / worker))


def refuse_other_keys(model: ModelConfig, engine: str, more: Iterable[str] = ()) -> None:
    """Keys that would have no effect are errors. Raises `ConfigError` naming the first."""
    for key in sorted(model.model_fields_set - _COMMON - set(more)):
        if getattr(model, key) != type(model).model_fields[key].get_default(call_default_factory=True):
            raise ConfigError(f"{key}: the engine {engine!r} has no use for it; leave it out")
    if model.device not in ("auto", "cpu"):
        raise ConfigError(f"device: the engine {engine!r} runs on the CPU here, not on {model.device!r}")


def max_model_len(model: ModelConfig, own: int | None) -> int:
    """The limit of prompt and answer. Raises `ConfigError` where neither configuration nor model says it."""
    if own is None and model.max_model_len is None:
        raise ConfigError(f"max_model_len: the files of {model.model} do not say it; set it")
    if own is not None and model.max_model_len is not None and model.max_model_len > own:
        raise ConfigError(
            f"max_model_len is {model.max_model_len}, but {model.model} was made for at most {own} positions; "
            f"set it to {own} or less"
        )
    limit = model.max_model_len or own
    assert limit is not None
    return limit


def model_info(model: ModelConfig, engine: str, prompts: PromptSide, max_num_seqs: int) -> ModelInfo:
    return ModelInfo(
        name=model.name,
        max_model_len=max_model_len(model, prompts.max_model_len),
        engine=engine,
        source=model.model,
        created=int(time.time()),
        vocab_size=prompts.tokenizer.vocab_size,
        max_num_seqs=max_num_seqs,
        max_batch_size=model.max_batch_size or max_num_seqs,
    )


def ending_tokens(directory: Path, prompts: PromptSide) -> tuple[int, ...]:
    """Every id that ends an answer: generation_config.json, config.json, and the tokenizer's own."""
    said = read_generation_config(directory).eos_token_ids if (directory / "config.json").is_file() else ()
    own = () if prompts.tokenizer.eos_token_id is None else (prompts.tokenizer.eos_token_id,)
    return tuple(dict.fromkeys((*said, *own)))
