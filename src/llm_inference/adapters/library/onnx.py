"""`engine: onnx`: ONNX Runtime GenAI in a process of its own, on the CPU. Sequences take turns; there is no batching.

`engine_args` may name `program` (a Python that has the library); its other keys are ONNX Runtime's session options.
"""

from __future__ import annotations

from typing import Any

from llm_inference.adapters.dialect import refuse, schema_or_regex
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.library.engine import open_library
from llm_inference.adapters.library.interpreter import Library
from llm_inference.adapters.library.onnx_model import ONNXModel, find_model
from llm_inference.adapters.library.plan import (
    LibraryPlan,
    ending_tokens,
    model_info,
    refuse_other_keys,
    worker_argv,
)
from llm_inference.adapters.library.wire import Grammar as WorkerGrammar
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest, Grammar, SamplingParams
from llm_inference.errors import ConfigError, InvalidRequestError
from llm_inference.model_spec import ModelSpec
from llm_inference.telemetry.devices import available_cpus

LIBRARY = Library("onnx", "onnxruntime_genai", "onnxruntime-genai")
DEFAULT_MAX_NUM_SEQS = 16
#: A longer prompt takes several turns, so that the others are not held up.
DEFAULT_MAX_NUM_BATCHED_TOKENS = 128
DEFAULT_KV_BYTES = 2**30
MAX_GRAMMAR_CHARS = 65_536

_BEAMS = "its sequences take turns one by one here, and a beam search needs them together"

PROFILE = Profile(
    name="onnx",
    evidence="live",
    source="ONNX Runtime GenAI 0.18.0, run on the default model",
    tokenize=True,
    enforced=frozenset(("response_format", "structured_outputs")),
    emulated=frozenset(
        (
            "top_k",
            "min_p",
            "seed",
            "logprobs",
            "top_logprobs",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "logit_bias",
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
            "forced_eos_token_id",
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
        "best_of": "it has no best_of; use n",
        "num_beams": _BEAMS,
        "length_penalty": _BEAMS,
        "early_stopping": _BEAMS,
        "cache_salt": "it shares no prefixes between requests",
        "priority": "sequences take turns in the order of arrival",
        "reasoning_effort": "pass the template's own switch in `chat_template_kwargs`",
    },
)


def translate(request: GenerateRequest, sampling: SamplingParams) -> WorkerGrammar | None:
    """The grammar in the library's words, and what does not go with one. Raises `InvalidRequestError`."""
    grammar = sampling.grammar
    if grammar is None:
        return None
    # Under a grammar the library's own sampler chooses, which knows none of these.
    for name, is_set in (
        ("logprobs", sampling.logprobs is not None),
        ("min_p", bool(sampling.min_p)),
        ("presence_penalty", bool(sampling.presence_penalty)),
        ("frequency_penalty", bool(sampling.frequency_penalty)),
        ("logit_bias", bool(sampling.logit_bias)),
        ("min_tokens", sampling.min_tokens > 0),
        ("ignore_eos", sampling.ignore_eos),
        ("forced_eos_token_id", sampling.forced_eos_token_id is not None),
    ):
        if is_set:
            raise InvalidRequestError(
                f"{name}: the engine 'onnx' cannot combine it with a constrained output; leave one of them out",
                param=name,
            )
    return _translated(grammar)


def _translated(grammar: Grammar) -> WorkerGrammar:
    if len(grammar.source) > MAX_GRAMMAR_CHARS:
        raise refuse("onnx", "response_format", f"the grammar has more than {MAX_GRAMMAR_CHARS} characters")
    if grammar.kind == "grammar":
        return WorkerGrammar("lark_grammar", grammar.source)
    return WorkerGrammar(*schema_or_regex(grammar))


def make_plan(model: ModelConfig, context: EngineContext) -> tuple[LibraryPlan, PromptSide]:
    """Raises `StartupError` for everything that can be known before the model is loaded."""
    # Prefixes are never shared here: `enable_prefix_caching` would have no effect, and its default is true.
    refuse_other_keys(model, "onnx")
    python = LIBRARY.python(model.engine_args.get("program"))
    version = LIBRARY.version(python)
    found = find_model(model, python, version, progress=context.progress)
    prompts = PromptSide.load(model, progress=context.progress)
    max_num_seqs = model.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    info = model_info(model, "onnx", prompts, max_num_seqs)
    setup: dict[str, Any] = {
        "model": str(found.path),
        "precision": found.precision,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": model.max_num_batched_tokens or DEFAULT_MAX_NUM_BATCHED_TOKENS,
        "kv_cache_tokens": kv_cache_tokens(model, found, info.max_model_len),
        "vocab_size": prompts.tokenizer.vocab_size,
        "num_threads": available_cpus(),
        "session_options": {key: value for key, value in model.engine_args.items() if key != "program"},
    }
    plan = LibraryPlan(
        info=info,
        defaults=prompts.defaults,
        eos_token_ids=ending_tokens(found.directory, prompts),
        argv=worker_argv(python, "onnx_worker.py"),
        setup=setup,
    )
    return plan, prompts


def kv_cache_tokens(model: ModelConfig, found: ONNXModel, max_model_len: int) -> int:
    """Tokens of all running sequences together, from `kv_cache_memory`, else 1 GiB. Raises `ConfigError`."""
    if not (found.directory / "config.json").is_file():
        return max_model_len * (model.max_num_seqs or DEFAULT_MAX_NUM_SEQS)
    token_bytes = ModelSpec.from_directory(found.directory).kv_bytes_per_token("float32")
    if model.kv_cache_memory is None:
        return max(DEFAULT_KV_BYTES // token_bytes, max_model_len)
    tokens = model.kv_cache_memory // token_bytes
    if tokens < max_model_len:
        raise ConfigError(
            f"kv_cache_memory: {model.kv_cache_memory} bytes hold {tokens} tokens, less than one context of "
            f"{max_model_len}; give at least {max_model_len * token_bytes}, or lower max_model_len"
        )
    return tokens


def create(model: ModelConfig, context: EngineContext) -> Engine:
    """Raises `StartupError`."""
    return open_library(model, context, PROFILE, translate, make_plan)
