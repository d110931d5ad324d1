"""`engine: sglang`: SGLang's OpenAI server, started here or at `url`."""

from __future__ import annotations

from typing import Any

import msgspec

from llm_inference.adapters.launch import Advice, Launch, Plan, flag
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import Profile, response_format
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import Grammar


def grammar_fields(grammar: Grammar) -> dict[str, Any]:
    """`response_format` for JSON and choices; top-level `regex` and `ebnf` for the rest."""
    if grammar.kind == "regex":
        return {"regex": grammar.source}
    if grammar.kind == "grammar":
        return {"ebnf": grammar.source}
    if grammar.kind == "choice":
        schema = {"enum": msgspec.json.decode(grammar.source)}
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "choice", "schema": schema}}}
    return response_format(grammar)


PROFILE = Profile(
    name="sglang",
    evidence="documented",
    source="general knowledge of its API; not yet checked against an installed version",
    enforced=frozenset(
        (
            "top_k",
            "min_p",
            "seed",
            "logprobs",
            "top_logprobs",
            "echo",
            "n",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "logit_bias",
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
            "structured_outputs",
            "priority",
            "chat_template_kwargs",
            "continue_final_message",
            "skip_special_tokens",
            "include_stop_str_in_output",
            "reasoning_effort",
        )
    ),
    reasons={
        "best_of": "SGLang's completions have no best_of; use n",
        "cache_salt": "SGLang separates prefixes by `extra_key`, which older versions do not know",
        "add_generation_prompt": "SGLang always adds it, but for continue_final_message",
        "return_token_ids": "SGLang's OpenAI routes send no token ids; engine sglang-generate does",
        "add_special_tokens": "SGLang always lets its tokenizer add them",
    },
    # Higher numbers run first unless the server is started with --schedule-low-priority-values-first.
    renames={"include_stop_str_in_output": "no_stop_trim"},
    priority_sign=-1,
    grammar=grammar_fields,
    completion_length="number",
    owned_by="sglang",
)


def arguments(plan: Plan) -> list[str]:
    model = plan.model
    return [
        *flag("--model-path", plan.source),
        *flag("--host", plan.host),
        *flag("--port", plan.port),
        *flag("--served-model-name", plan.served_name),
        *flag("--dtype", model.resolved_dtype),
        *flag("--quantization", model.resolved_quantization),
        *flag("--context-length", model.max_model_len),
        *flag("--max-running-requests", model.max_num_seqs),
        *flag("--chunked-prefill-size", model.max_num_batched_tokens),
        *flag("--tp-size", model.tensor_parallel_size if model.tensor_parallel_size > 1 else None),
        *flag("--mem-fraction-static", plan.said("gpu_memory_utilization")),
        *flag("--tokenizer-path", model.tokenizer),
        *flag("--chat-template", model.chat_template),
        *([] if model.enable_prefix_caching else ["--disable-radix-cache"]),
        *(["--trust-remote-code"] if model.trust_remote_code else []),
        "--enable-metrics",
        "--enable-priority-scheduling",
    ]


LAUNCH = Launch(
    program="sglang",
    command=("serve",),
    modules=("sglang.launch_server",),
    arguments=arguments,
    install="llm-inference engines install sglang, on a machine with an NVIDIA GPU",
    advice=(
        # The two fixes are opposite: the static share holds weights and cache, the rest is for activations.
        Advice(
            r"Not enough memory\. Please try to increase --mem-fraction-static|max_total_num_tokens.*(?:<=|is) ?0",
            "this is at start-up: raise gpu_memory_utilization (SGLang's mem_fraction_static), or lower max_model_len",
        ),
        Advice(
            r"out of memory",
            "while it runs: lower gpu_memory_utilization (SGLang's mem_fraction_static), or max_num_batched_tokens",
        ),
    ),
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
