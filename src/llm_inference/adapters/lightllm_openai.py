"""`engine: lightllm-openai`: the OpenAI routes of newer LightLLM, started here or at `url`."""

from __future__ import annotations

from llm_inference.adapters.launch import Launch, Plan, flag
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext

_UNKNOWN = "LightLLM's OpenAI routes have no such field"
PROFILE = Profile(
    name="lightllm-openai",
    evidence="documented",
    source="general knowledge of its API; not yet checked against an installed version",
    enforced=frozenset(
        (
            "top_k",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "ignore_eos",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "chat_template_kwargs",
            "seed",
            "response_format",
            "skip_special_tokens",
            "add_special_tokens",
        )
    ),
    emulated=frozenset(("n", "include_stop_str_in_output")),
    reasons={
        **dict.fromkeys(
            (
                "min_p",
                "echo",
                "best_of",
                "logit_bias",
                "min_tokens",
                "stop_token_ids",
                "structured_outputs",
                "continue_final_message",
                "add_generation_prompt",
                "return_token_ids",
                "reasoning_effort",
            ),
            _UNKNOWN,
        ),
        "logprobs": "LightLLM takes the field and does nothing with it in chats",
        "top_logprobs": "LightLLM takes the field and does nothing with it in chats",
        "cache_salt": "LightLLM's cache has no salt",
        "priority": "LightLLM serves in the order of arrival",
    },
    completion_length="number",
    token_prompts=False,
    stop_strings=False,
)


def arguments(plan: Plan) -> list[str]:
    model = plan.model
    return [
        *flag("--model_dir", plan.source),
        *flag("--model_name", plan.served_name),
        *flag("--host", plan.host),
        *flag("--port", plan.port),
        *flag("--tp", model.tensor_parallel_size),
        *flag("--max_req_total_len", model.max_model_len),
        *flag("--running_max_req_size", model.max_num_seqs),
        *flag("--batch_max_tokens", model.max_num_batched_tokens),
        *flag("--mem_fraction", plan.said("gpu_memory_utilization")),
        *flag("--data_type", model.resolved_dtype),
        *flag("--quant_type", model.resolved_quantization),
        *(["--trust_remote_code"] if model.trust_remote_code else []),
    ]


LAUNCH = Launch(
    program="python",
    modules=("lightllm.server.api_server",),
    arguments=arguments,
    install="its container image, or its sources in a venv of its own",
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
