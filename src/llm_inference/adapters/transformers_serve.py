"""`engine: transformers`: `transformers serve`, started here or at `url`. A small server for trying models out.

It runs one request after the other, drops the fields that it does not know with a line in its log, and samples only
where the model's own generation_config.json says so. What it can do beyond that it takes as a whole generation config
in JSON, so that is what it is sent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llm_inference.adapters.launch import Launch, Plan, flag
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import ConfigError

#: Our names of the fields that travel in `generation_config` → their names there.
_IN_CONFIG = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens",
}
_DROPPED = "`transformers serve` takes the field and drops it"
_UNKNOWN = "`transformers serve` has no such field"


def rewrite(body: dict[str, Any]) -> dict[str, Any]:
    """Fields into `generation_config`. Without a limit the server's own stays: 1,024 tokens."""
    config = {theirs: body.pop(ours) for ours, theirs in _IN_CONFIG.items() if ours in body}
    if config.get("top_k") == -1:
        config["top_k"] = 0
    if "temperature" in body:
        config["do_sample"] = body["temperature"] > 0
    if config:
        body.setdefault("max_tokens", 1024)
        body["generation_config"] = msgspec.json.encode(config).decode()
    return body


PROFILE = Profile(
    name="transformers",
    evidence="documented",
    source="the code of 5.24's server",
    enforced=frozenset(
        ("top_k", "min_p", "repetition_penalty", "min_tokens", "logit_bias", "tools", "chat_template_kwargs")
    ),
    emulated=frozenset(("n", "include_stop_str_in_output")),
    reasons={
        **dict.fromkeys(
            (
                "logprobs",
                "top_logprobs",
                "echo",
                "best_of",
                "presence_penalty",
                "tool_choice",
                "parallel_tool_calls",
                "response_format",
            ),
            _DROPPED,
        ),
        **dict.fromkeys(("structured_outputs", "return_token_ids", "add_special_tokens"), _UNKNOWN),
        "seed": "`transformers serve` seeds one generator for all requests, so that others change what a seed gives",
        "frequency_penalty": "`transformers serve` makes a repetition penalty of it; use repetition_penalty",
        "stop_token_ids": "`transformers serve` knows stop strings alone; logit_bias can forbid a token in chats",
        "ignore_eos": "`transformers serve` always ends at EOS; min_tokens can keep that off",
        "continue_final_message": "`transformers serve` always adds the generation prompt",
        "add_generation_prompt": "`transformers serve` always adds it",
        "skip_special_tokens": "`transformers serve` always skips them",
        "reasoning_effort": "pass the template's own switch in chat_template_kwargs",
        "cache_salt": "it has no prefix cache that is shared",
        "priority": "it serves in the order of arrival",
    },
    token_prompts=False,
    chat_only=frozenset(("logit_bias",)),
    stop_strings=False,
    usage_option=False,
    completion_length="always",
    rewrite=rewrite,
)


def arguments(plan: Plan) -> list[str]:
    model = plan.model
    return [
        plan.source,
        *flag("--host", plan.host),
        *flag("--port", plan.port),
        *flag("--dtype", model.resolved_dtype),
        *flag("--device", model.device),
        *(["--trust-remote-code"] if model.trust_remote_code else []),
    ]


LAUNCH = Launch(
    program="transformers",
    command=("serve",),
    arguments=arguments,
    serves_source=True,
    install="llm-inference engines install transformers",
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    """Raises `ConfigError` for continuous batching, under which the first request's sampling would be everybody's."""
    if model.engine_args.get("continuous_batching"):
        raise ConfigError(
            "engine_args.continuous_batching: `transformers serve` then samples all requests as the first one asked; "
            "leave it out"
        )
    return open_engine(model, context, PROFILE, LAUNCH)
