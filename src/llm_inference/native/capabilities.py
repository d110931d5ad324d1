"""What the native engine does with each optional request field: enforced here, or refused with the reason."""

from __future__ import annotations

from llm_inference.engine.base import Capabilities

_ENFORCED = (
    "top_k",
    "min_p",
    "seed",
    "logprobs",
    "top_logprobs",
    "echo",
    "n",
    "best_of",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "forced_eos_token_id",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "cache_salt",
    "priority",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "return_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "add_special_tokens",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "logits_processors",
)

CAPABILITIES = Capabilities(
    fields=dict.fromkeys(_ENFORCED, "enforced"),
    reasons={
        "prompt_logprobs": "use `echo` together with `logprobs` on /v1/completions",
        "reasoning_effort": "pass the template's own switch in `chat_template_kwargs`",
    },
    tokenize=True,
    embeddings=True,
)

#: Of a model that is an encoder.
ENCODER_CAPABILITIES = Capabilities(
    fields=dict.fromkeys(("priority", "add_special_tokens"), "enforced"),
    reasons={"cache_salt": "an encoder has no cache"},
    generate=False,
    tokenize=True,
    embeddings=True,
)
