"""`engine: ollama`: Ollama's OpenAI routes, started here or at `url`. Models go by Ollama's own names."""

from __future__ import annotations

from llm_inference.adapters.launch import Launch, Plan
from llm_inference.adapters.managed import open_engine
from llm_inference.adapters.profile import Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext

_NATIVE = "Ollama's OpenAI routes have no such field; engine ollama-native has `options`"
PROFILE = Profile(
    name="ollama",
    evidence="documented",
    source="general knowledge of its API; not yet checked against an installed version",
    enforced=frozenset(
        (
            "seed",
            "logprobs",
            "top_logprobs",
            "frequency_penalty",
            "presence_penalty",
            "tools",
            "response_format",
            "reasoning_effort",
        )
    ),
    emulated=frozenset(("n", "include_stop_str_in_output")),
    reasons={
        "top_k": _NATIVE,
        "min_p": _NATIVE,
        "repetition_penalty": _NATIVE,
        "echo": "Ollama does not repeat the prompt",
        "best_of": "Ollama has no best_of; use n",
        "logit_bias": "Ollama documents it as unsupported",
        "min_tokens": "Ollama has no least length",
        "stop_token_ids": "Ollama knows stop strings alone",
        "ignore_eos": "Ollama always ends at EOS",
        "tool_choice": "Ollama documents it as unsupported",
        "parallel_tool_calls": "Ollama has no such field",
        "structured_outputs": "Ollama's only grammar is JSON: use response_format",
        "cache_salt": "Ollama's cache has no salt",
        "priority": "Ollama serves in the order of arrival",
        "chat_template_kwargs": "Ollama passes nothing to the template",
        "continue_final_message": "Ollama decides by the last message's role",
        "add_generation_prompt": "Ollama decides by the last message's role",
        "return_token_ids": "Ollama sends no token ids",
        "skip_special_tokens": "Ollama always skips them",
        "add_special_tokens": "Ollama always lets its tokenizer add them",
    },
    health_path="/",
    token_prompts=False,
    owned_by="library",
)


def arguments(plan: Plan) -> list[str]:
    """`ollama serve` takes its settings from the environment, see `environment`."""
    return []


def environment(plan: Plan) -> dict[str, str]:
    model = plan.model
    settings = {
        "OLLAMA_HOST": f"{plan.host}:{plan.port}",
        "OLLAMA_CONTEXT_LENGTH": model.max_model_len,
        "OLLAMA_NUM_PARALLEL": model.max_num_seqs,
    }
    return {name: str(value) for name, value in settings.items() if value is not None}


LAUNCH = Launch(
    program="ollama",
    command=("serve",),
    arguments=arguments,
    env=environment,
    needs="name",
    serves_source=True,
    install="its installer, then `ollama pull` of the model",
)


def create(model: ModelConfig, context: EngineContext) -> Engine:
    return open_engine(model, context, PROFILE, LAUNCH)
