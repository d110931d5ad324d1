"""`engine: tgi`: Text Generation Inference over its OpenAI routes, started here or at `url`."""

from __future__ import annotations

from typing import Any

import msgspec

from llm_inference.adapters.launch import Advice, Launch, Plan, flag
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import Grammar


def grammar_fields(grammar: Grammar) -> dict[str, Any]:
    """TGI's own spelling: the schema stands in `value`; any JSON is an object of anything."""
    if grammar.kind == "regex":
        return {"response_format": {"type": "regex", "value": grammar.source}}
    schema = {"type": "object"} if grammar.kind == "json_object" else msgspec.json.decode(grammar.source)
    if grammar.kind == "choice":
        schema = {"enum": schema}
    return {"response_format": {"type": "json", "value": schema}}


_ROUTES = "TGI's OpenAI routes have no such field; "
PROFILE = Profile(
    name="tgi",
    evidence="recorded",
    source="replies of 1.4 to 3.2 (the answers); the request fields are not yet checked against a running one",
    enforced=frozenset(
        ("seed", "logprobs", "top_logprobs", "frequency_penalty", "tools", "tool_choice", "response_format")
    ),
    emulated=frozenset(("n", "include_stop_str_in_output")),
    reasons={
        "top_k": _ROUTES + "engine tgi-generate has",
        "min_p": "TGI has no min_p",
        "echo": _ROUTES + "engine tgi-generate has details of the prompt",
        "best_of": _ROUTES + "engine tgi-generate has",
        "presence_penalty": "TGI takes the field and does nothing with it",
        "repetition_penalty": "TGI has it on completions and not on chats; engine tgi-generate has it for both",
        "logit_bias": "TGI takes the field and does nothing with it",
        "min_tokens": "TGI has no least length",
        "stop_token_ids": "TGI knows stop strings alone",
        "ignore_eos": "TGI always ends at EOS",
        "parallel_tool_calls": "TGI's tool grammar decides the number of calls",
        "structured_outputs": "TGI's own grammars are JSON and regular expressions: use response_format",
        "cache_salt": "TGI's prefix cache has no salt",
        "priority": "TGI serves in the order of arrival",
        "chat_template_kwargs": "TGI passes nothing to the template",
        "continue_final_message": "TGI decides by the last message's role",
        "add_generation_prompt": "TGI decides by the last message's role",
        "return_token_ids": _ROUTES + "engine tgi-generate sends ids",
        "skip_special_tokens": "TGI always skips them",
        "reasoning_effort": "TGI passes nothing to the template",
        "add_special_tokens": "TGI always lets its tokenizer add them",
    },
    grammar=grammar_fields,
    chat_only=frozenset(("logprobs", "response_format")),
    token_prompts=False,
    stop_strings=False,  # TGI's answer contains the stop string; ours decides what is shown
    owned_by="tgi",
)


def arguments(plan: Plan) -> list[str]:
    model = plan.model
    longest = model.max_model_len
    return [
        *flag("--model-id", plan.source),
        *flag("--served-model-name", plan.served_name),
        *flag("--hostname", plan.host),
        *flag("--port", plan.port),
        *flag("--num-shard", model.tensor_parallel_size if model.tensor_parallel_size > 1 else None),
        *flag("--quantize", model.resolved_quantization),
        *flag("--dtype", None if model.resolved_quantization else model.resolved_dtype),
        *flag("--max-total-tokens", longest),
        *flag("--max-input-tokens", None if longest is None else max(longest - 1, 1)),
        *flag("--max-batch-prefill-tokens", model.max_num_batched_tokens),
        *flag("--max-concurrent-requests", model.max_num_seqs),
        *flag("--cuda-memory-fraction", plan.said("gpu_memory_utilization")),
        *(["--trust-remote-code"] if model.trust_remote_code else []),
    ]


LAUNCH = Launch(
    program="text-generation-launcher",
    arguments=arguments,
    install="its container image",
    advice=(
        Advice(
            r"Not enough memory to handle|out of memory",
            "lower max_num_batched_tokens (max-batch-prefill-tokens) or max_model_len, or choose a quantization",
        ),
    ),
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
