"""`engine: openvino`: OpenVINO GenAI's continuous batching pipeline in a process of its own, on the CPU.

`engine_args` may name `program` (a Python that has the library), fields of its SchedulerConfig
(`dynamic_split_fuse: false`), and OpenVINO's own properties in capitals (`KV_CACHE_PRECISION: u8`).
"""

from __future__ import annotations

import math
from typing import Any

from llm_inference.adapters.dialect import GREEDY_BELOW, refuse
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.library.engine import open_library
from llm_inference.adapters.library.interpreter import Library
from llm_inference.adapters.library.openvino_grammar import translate_grammar
from llm_inference.adapters.library.openvino_model import OpenVINOModel, find_model
from llm_inference.adapters.library.plan import (
    LibraryPlan,
    ending_tokens,
    model_info,
    refuse_other_keys,
    worker_argv,
)
from llm_inference.adapters.library.wire import Grammar
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import ChatPrompt, GenerateRequest, SamplingParams
from llm_inference.errors import ConfigError, InvalidRequestError
from llm_inference.model_spec import ModelSpec
from llm_inference.telemetry.devices import available_cpus
from llm_inference.text.parsers.tool_grammar import forces_call

LIBRARY = Library("openvino", "openvino_genai", "openvino-genai")
#: Tokens in one block of the CPU's KV cache, which the library fixes.
BLOCK_SIZE = 32
DEFAULT_MAX_NUM_SEQS = 64
DEFAULT_MAX_NUM_BATCHED_TOKENS = 256
DEFAULT_KV_BYTES = 2**30

_NO_BEST_OF = "it has no best_of; use n, or num_beams"

PROFILE = Profile(
    name="openvino",
    evidence="live",
    source="OpenVINO GenAI 2026.4.1, run on the default model",
    tokenize=True,
    enforced=frozenset(
        (
            "top_k",
            "min_p",
            "seed",
            "logprobs",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
            "response_format",
            "structured_outputs",
            "num_beams",
            "length_penalty",
            "early_stopping",
        )
    ),
    emulated=frozenset(
        (
            "echo",
            "n",
            "chat_template_kwargs",
            "continue_final_message",
            "add_generation_prompt",
            "return_token_ids",
            "skip_special_tokens",
            "include_stop_str_in_output",
            "add_special_tokens",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
        )
    ),
    reasons={
        "top_logprobs": "it tells the chosen token's log-probability and no other's",
        "best_of": _NO_BEST_OF,
        "logit_bias": "it has no logit_bias",
        "cache_salt": "its prefix cache has no salt; `enable_prefix_caching: false` turns it off",
        "priority": "it serves in the order of arrival",
        "reasoning_effort": "pass the template's own switch in `chat_template_kwargs`",
    },
)


def translate(request: GenerateRequest, sampling: SamplingParams) -> Grammar | None:
    """What no table says: values that it cannot take. Raises `InvalidRequestError`."""
    if sampling.logprobs and not (sampling.logprobs == 1 and _takes_the_best(sampling)):
        raise refuse("openvino", "logprobs", "it tells the chosen token's log-probability and no other's; send 0")
    if sampling.ignore_eos and sampling.min_tokens and sampling.stop_token_ids:
        raise refuse("openvino", "min_tokens", "with ignore_eos it does not hold back stop_token_ids")
    if sampling.num_beams > 1:
        _check_beams(request.sampling)
    if sampling.grammar is None:
        return None
    forced = isinstance(request.prompt, ChatPrompt) and request.prompt.tools and forces_call(request.tool_choice)
    return translate_grammar(sampling.grammar, "tools" if forced else "response_format")


def _takes_the_best(sampling: SamplingParams) -> bool:
    """Whether the chosen token is always the model's likeliest, so that its log-probability is also the best."""
    neutral = (
        sampling.repetition_penalty in (None, 1.0),
        not sampling.presence_penalty,
        not sampling.frequency_penalty,
    )
    greedy = (sampling.temperature or 0.0) < GREEDY_BELOW
    return greedy and all(neutral) and not sampling.min_tokens and sampling.grammar is None


def _check_beams(asked: SamplingParams) -> None:
    if asked.n > asked.num_beams:
        raise InvalidRequestError(
            f"n is {asked.n}, but a search with num_beams={asked.num_beams} has only that many outputs", param="n"
        )
    for name, is_set in (
        ("temperature", bool(asked.temperature)),
        ("seed", asked.seed is not None),
        ("logprobs", asked.logprobs is not None),
        ("min_tokens", asked.min_tokens > 0),
        ("ignore_eos", asked.ignore_eos),
        ("response_format", asked.grammar is not None),
    ):
        if is_set:
            raise InvalidRequestError(f"{name} cannot be combined with num_beams", param=name)


def make_plan(model: ModelConfig, context: EngineContext) -> tuple[LibraryPlan, PromptSide]:
    """Raises `StartupError` for everything that can be known before the model is loaded."""
    refuse_other_keys(model, "openvino", ("enable_prefix_caching",))
    python = LIBRARY.python(model.engine_args.get("program"))
    LIBRARY.version(python)
    scheduler, properties = split_arguments(model.engine_args)
    found = find_model(model, progress=context.progress)
    prompts = PromptSide.load(model, progress=context.progress)
    max_num_seqs = model.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    info = model_info(model, "openvino", prompts, max_num_seqs)
    setup: dict[str, Any] = {
        "model": str(found.path),
        "weights": found.weights,
        "dtype": model.resolved_dtype,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": model.max_num_batched_tokens or DEFAULT_MAX_NUM_BATCHED_TOKENS,
        "enable_prefix_caching": model.enable_prefix_caching,
        "num_kv_blocks": num_kv_blocks(model, found, info.max_model_len, max_num_seqs),
        "num_threads": available_cpus(),
        "scheduler": scheduler,
        "properties": properties,
    }
    plan = LibraryPlan(
        info=info,
        defaults=prompts.defaults,
        eos_token_ids=ending_tokens(found.directory, prompts),
        argv=worker_argv(python, "openvino_worker.py"),
        setup=setup,
    )
    return plan, prompts


def split_arguments(arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(fields of SchedulerConfig, OpenVINO's properties). Raises `ConfigError`."""
    scheduler: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for name, value in arguments.items():
        if name == "program":
            continue
        if not isinstance(value, (str, int, float)):
            raise ConfigError(f"engine_args.{name}: must be text, a number, true or false, not {value!r}")
        (properties if name.isupper() else scheduler)[name] = value
    return scheduler, properties


def num_kv_blocks(model: ModelConfig, found: OpenVINOModel, max_model_len: int, max_num_seqs: int) -> int:
    """From `kv_cache_memory`, else 1 GiB or one whole context. Raises `ConfigError` if a context does not fit."""
    per_context = math.ceil(max_model_len / BLOCK_SIZE) + 1
    if not (found.directory / "config.json").is_file():
        return per_context * max_num_seqs
    spec = ModelSpec.from_directory(found.directory)
    # In 8 bits, the default, each head of a token has a scale and an offset too: about a quarter more.
    head_bytes = 4 * spec.head_dim if model.resolved_dtype == "float32" else math.ceil(1.25 * spec.head_dim)
    block_bytes = 2 * spec.num_layers * spec.num_kv_heads * head_bytes * BLOCK_SIZE
    if model.kv_cache_memory is None:
        return min(max(DEFAULT_KV_BYTES // block_bytes, per_context), per_context * max_num_seqs)
    blocks = model.kv_cache_memory // block_bytes
    if blocks < per_context:
        raise ConfigError(
            f"kv_cache_memory: {model.kv_cache_memory} bytes hold {blocks * BLOCK_SIZE} tokens, less than one context "
            f"of {max_model_len}; give at least {per_context * block_bytes}, or lower max_model_len"
        )
    return blocks


def create(model: ModelConfig, context: EngineContext) -> Engine:
    """Raises `StartupError`."""
    return open_library(model, context, PROFILE, translate, make_plan)
