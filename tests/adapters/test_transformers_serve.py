"""The bodies that `transformers serve` gets, read with transformers' own class for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from llm_inference.adapters.openai_body import make_body
from llm_inference.adapters.transformers_serve import PROFILE, create
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import ChatPrompt, GenerateRequest, Prompt, SamplingParams
from llm_inference.errors import ConfigError, InvalidRequestError

CHAT = ChatPrompt(messages=({"role": "user", "content": "hello"},))
#: All that its chat route takes without a complaint or a silent drop, as of 5.24.
KNOWN = {
    "model", "messages", "prompt", "stream", "max_tokens", "temperature", "top_p", "logit_bias", "tools",
    "generation_config", "chat_template_kwargs",
}  # fmt: skip


def body(prompt: Prompt = CHAT, max_tokens: int | None = 100, **sampling: Any) -> dict[str, Any]:
    request = GenerateRequest(request_id="r", model="m", prompt=prompt, sampling=SamplingParams(**sampling))
    return make_body(request, PROFILE, "m", max_tokens=max_tokens, upstream_stops=False)


def config(made: dict[str, Any]) -> GenerationConfig:
    return GenerationConfig(**json.loads(made["generation_config"]))


def test_sampling_is_asked_for_where_the_model_would_be_greedy() -> None:
    made = body(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2, min_tokens=3)
    read = config(made)
    assert read.do_sample is True
    assert (read.top_k, read.min_p, read.repetition_penalty, read.min_new_tokens) == (5, 0.1, 1.2, 3)
    assert (made["temperature"], made["top_p"], made["max_tokens"]) == (0.7, 0.9, 100)
    assert set(made) <= KNOWN
    read.validate(strict=True)


def test_greedy_and_off_and_nothing_said() -> None:
    assert config(body(temperature=0.0)).do_sample is False
    assert config(body(top_k=-1)).top_k == 0
    assert "generation_config" not in body()


def test_a_config_of_ours_never_ends_after_twenty_tokens() -> None:
    """Without a limit its usual one stays: `generate`'s own would be 20."""
    assert body(max_tokens=None, temperature=1.0)["max_tokens"] == 1024
    assert "max_tokens" not in body(max_tokens=None)


def test_a_field_that_a_completion_would_lose_is_refused() -> None:
    assert body(logit_bias={5: 1.0})["logit_bias"] == {"5": 1.0}
    with pytest.raises(InvalidRequestError, match="logit_bias: the engine 'transformers' has it for chats alone"):
        body("hello", logit_bias={5: 1.0})
    with pytest.raises(InvalidRequestError, match="seed: the engine 'transformers' refuses it"):
        body(seed=1)


def test_one_sampling_for_all_requests_is_refused(tmp_path: Path) -> None:
    model = ModelConfig(engine="transformers", engine_args={"continuous_batching": True})
    with pytest.raises(ConfigError, match=r"engine_args\.continuous_batching"):
        create(model, EngineContext(run_dir=tmp_path))
