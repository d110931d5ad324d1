"""`engine: transformers`: `transformers serve`, started here or at `url`. A small server for trying models out."""

from __future__ import annotations

from llm_inference.adapters.launch import Launch, Plan, flag
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext

_UNKNOWN = "`transformers serve` answers an error to fields that it does not enforce"
PROFILE = Profile(
    name="transformers",
    evidence="documented",
    source="general knowledge of its API; not yet checked against an installed version",
    enforced=frozenset(("seed", "frequency_penalty", "logit_bias", "tools")),
    emulated=frozenset(("n", "include_stop_str_in_output")),
    reasons={
        **dict.fromkeys(
            (
                "top_k",
                "min_p",
                "logprobs",
                "top_logprobs",
                "echo",
                "best_of",
                "presence_penalty",
                "repetition_penalty",
                "min_tokens",
                "stop_token_ids",
                "ignore_eos",
                "tool_choice",
                "parallel_tool_calls",
                "response_format",
                "structured_outputs",
                "chat_template_kwargs",
                "continue_final_message",
                "add_generation_prompt",
                "return_token_ids",
                "skip_special_tokens",
                "reasoning_effort",
                "add_special_tokens",
            ),
            _UNKNOWN,
        ),
        "cache_salt": "it has no prefix cache that is shared",
        "priority": "it serves in the order of arrival",
    },
    token_prompts=False,
    stop_strings=False,
    usage_option=False,
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
    install="pip install 'transformers[serving]' in a venv of its own",
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
