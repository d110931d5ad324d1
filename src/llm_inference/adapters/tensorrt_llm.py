"""`engine: tensorrt-llm`: `trtllm-serve` and its OpenAI routes, started here or at `url`."""

from __future__ import annotations

from llm_inference.adapters.launch import Advice, Launch, Plan, flag
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext

PROFILE = Profile(
    name="tensorrt-llm",
    evidence="documented",
    source="general knowledge of its API; not yet checked against an installed version",
    enforced=frozenset(
        (
            "top_k",
            "min_p",
            "seed",
            "logprobs",
            "top_logprobs",
            "n",
            "best_of",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "logit_bias",
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
            "tools",
            "tool_choice",
            "response_format",
            "chat_template_kwargs",
            "add_generation_prompt",
            "skip_special_tokens",
            "include_stop_str_in_output",
            "add_special_tokens",
            "reasoning_effort",
            "cache_salt",
        )
    ),
    reasons={
        "echo": "trtllm-serve does not repeat the prompt",
        "parallel_tool_calls": "trtllm-serve decides the number of calls itself",
        "structured_outputs": "trtllm-serve takes JSON alone over its OpenAI routes: use response_format",
        "priority": "trtllm-serve serves in the order of arrival",
        "continue_final_message": "trtllm-serve decides by the last message's role",
        "return_token_ids": "trtllm-serve sends no token ids to ordinary clients",
    },
    completion_length="null",
    owned_by="tensorrt_llm",
)


def arguments(plan: Plan) -> list[str]:
    model = plan.model
    return [
        plan.source,
        *flag("--host", plan.host),
        *flag("--port", plan.port),
        *flag("--max_seq_len", model.max_model_len),
        *flag("--max_batch_size", model.max_num_seqs),
        *flag("--max_num_tokens", model.max_num_batched_tokens),
        *flag("--tp_size", model.tensor_parallel_size if model.tensor_parallel_size > 1 else None),
        *flag("--kv_cache_free_gpu_memory_fraction", plan.said("gpu_memory_utilization")),
        *(["--trust_remote_code"] if model.trust_remote_code else []),
    ]


LAUNCH = Launch(
    program="trtllm-serve",
    arguments=arguments,
    serves_source=True,
    install="its container image",
    advice=(
        Advice(
            r"out of memory",
            "lower gpu_memory_utilization (kv_cache_free_gpu_memory_fraction), max_num_seqs or max_model_len",
        ),
    ),
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
