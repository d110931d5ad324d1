from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai.fields import SamplingFields
from llm_inference.gateway.openai.protocol import ChatCompletionRequest, CompletionRequest

CHAT = {"messages": [{"role": "user", "content": "x"}]}

#: Field → (values that are taken, values that are not).
RANGES: dict[str, tuple[list[Any], list[Any]]] = {
    "max_tokens": ([1, 2**24], [-1, 2**24 + 1, 10**12, 1e12, 1.0, "1", True]),
    "max_completion_tokens": ([1], [0, -1, 1.5, True]),
    "max_new_tokens": ([1], [0, True]),
    "min_tokens": ([0, 5], [-1, True]),
    "temperature": ([0, 0.0, 1e-9, 2.5, 100], [-0.1, True, "1", float("nan"), float("inf"), [1]]),
    "top_p": ([0.01, 1], [0, 1.01, -1, True, "0.5", float("nan")]),
    "top_k": ([-1, 0, 50], [-2, 2**31, 1.5, True, "1"]),
    "min_p": ([0, 1], [-0.1, 1.1, True, float("nan")]),
    "repetition_penalty": ([0.5, 1, 100], [0, -1, 101, True, float("inf")]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1, True, float("nan")]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1, True]),
    "seed": ([-(2**63), 2**63 - 1], [2**63, -(2**63) - 1, 1.5, True, "1"]),
    "n": ([1, 128], [0, 129, 10**6, True, 1.0]),
    "top_logprobs": ([0, 20], [-1, 21, True]),
    "logprobs": ([True, False], [1, 0, "true"]),
    "stream": ([True, False], [1, "true"]),
    "ignore_eos": ([True], [1]),
    "num_beams": ([1, 64], [0, 65, True]),
    "length_penalty": ([0.0, -1.5, 20, -20], [True, float("nan"), 20.1, -21, 1e308]),
    "priority": ([-5, 5], [2**31, 1.5, True]),
    "cache_salt": (["a"], ["", "x" * 257, 1]),
    "user": (["somebody", ""], [7]),
    "metadata": ([{}, {"a": "b"}], [[], "x"]),
    "store": ([False], [True, 0, "no"]),
    "service_tier": (["auto", "default", "int8"], ["", "x" * 257, 1]),
    "modalities": ([["text"]], [["audio"], ["text", "audio"], "text"]),
    "reasoning_effort": (["low", "none"], ["extreme", 1]),
    "chat_template_kwargs": ([{}, {"a": 1}], [[], "x"]),
    "stream_options": ([{}, {"include_usage": True}], [{"include_usage": 1}, {"x": 1}, True]),
    "model": (["m"], ["", 7]),
}


@pytest.mark.parametrize("field", RANGES)
def test_ranges(field: str) -> None:
    good, bad = RANGES[field]
    for value in [*good, None]:
        assert ChatCompletionRequest.parse({**CHAT, field: value}).messages
    for value in bad:
        with pytest.raises(InvalidRequestError) as caught:
            ChatCompletionRequest.parse({**CHAT, field: value})
        assert (caught.value.param or "").startswith(field), value
        assert field in caught.value.message


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(set(ChatCompletionRequest.model_fields) - {"messages"})
    parsed = ChatCompletionRequest.parse({**CHAT, **nulls, "unknown_but_null": None})
    assert parsed == ChatCompletionRequest.parse(CHAT)
    assert parsed.model_fields_set == {"messages"}


def test_unknown_fields_name_their_neighbour() -> None:
    with pytest.raises(InvalidRequestError, match="Did you mean max_tokens") as caught:
        ChatCompletionRequest.parse({**CHAT, "max_token": 1})
    assert (caught.value.param, caught.value.public_code) == ("max_token", "unknown_parameter")
    with pytest.raises(InvalidRequestError) as caught:
        ChatCompletionRequest.parse({**CHAT, "zzz" * 1000: 1})
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("model", "base"), [(ChatCompletionRequest, CHAT), (CompletionRequest, {"prompt": "x"})], ids=["chat", "text"]
)
def test_known_fields_without_effect_say_why(model: type[SamplingFields], base: dict[str, Any]) -> None:
    assert {"max_length", "prediction", "prompt_logprobs"} <= set(model.refused)
    for field, reason in model.refused.items():
        assert field not in model.model_fields
        with pytest.raises(InvalidRequestError) as caught:
            model.parse({**base, field: 20})
        assert caught.value.param == field
        assert reason in caught.value.message
    assert "max_new_tokens" in model.refused["max_length"]
    assert not set(model.inert) & set(model.model_fields)
