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
from llm_inference.errors import InvalidRequestError
from llm_inference.telemetry.devices import available_cpus


def grammar_fields(grammar: Grammar) -> dict[str, Any]:
    """JSON Schema in `response_format`; choices as a grammar of alternatives. Its grammars are GBNF, in no other words.

    Raises `InvalidRequestError` for a regular expression or a Lark grammar.
    """
    if grammar.kind == "choice":
        choices = msgspec.json.decode(grammar.source)
        return {"grammar": "root ::= " + " | ".join(msgspec.json.encode(choice).decode() for choice in choices)}
    if grammar.kind in ("regex", "grammar"):
        raise InvalidRequestError(
            f"structured_outputs.{grammar.kind}: the engine 'llama.cpp' has grammars of its own kind (GBNF) alone; use "
            "response_format with a JSON schema, or structured_outputs.choice.",
            param=f"structured_outputs.{grammar.kind}",
        )
    return response_format(grammar)


PROFILE = Profile(
    name="llama.cpp",
    evidence="documented",
    source="build 11434, started by us and asked for these fields; its code",
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
            "parallel_tool_calls",
            "response_format",
            "structured_outputs",
            "chat_template_kwargs",
            "add_generation_prompt",
            "continue_final_message",
            "reasoning_effort",
        )
    ),
    # Its own `required` came back without a call, and a named function as if nothing had been chosen.
    emulated=frozenset(("n", "include_stop_str_in_output", "tool_choice")),
    reasons={
        "echo": "llama-server does not repeat the prompt",
        "best_of": "llama-server has no best_of; use n",
        "min_tokens": "llama-server has no least length",
        "stop_token_ids": "llama-server knows stop strings alone; logit_bias can forbid a token",
        "cache_salt": "llama-server's cache has no salt",
        "priority": "llama-server serves in the order of arrival",
        "return_token_ids": "llama-server's OpenAI routes send no token ids",
        "skip_special_tokens": "llama-server decides it for all requests (--special)",
        "add_special_tokens": "llama-server always lets its tokenizer add them",
    },
    renames={"repetition_penalty": "repeat_penalty"},
    grammar=grammar_fields,
    # Penalties look at the last 64 tokens otherwise; build 11434 takes no -1 for all of them.
    constants={"repeat_last_n": 131072},
    cuts_max_tokens=True,
    keep_alive=False,
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
        # Its own count is that of the machine, whatever the cgroup allows.
        *flag("--threads", available_cpus()),
        *(["--chat-template-file", model.chat_template] if model.chat_template else []),
        "--jinja",
        "--metrics",
    ]


LAUNCH = Launch(
    program="llama-server",
    arguments=arguments,
    needs="gguf",
    install="llm-inference engines install llama.cpp",
    advice=(
        Advice(
            r"failed to allocate|out of memory|unable to allocate|failed to create context",
            "lower max_model_len or max_num_seqs, or take a smaller quantization of the model",
        ),
    ),
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
