from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_inference.engine.base import Capabilities
from llm_inference.engine.fake import FakeEngine
from llm_inference.engine.types import SamplingParams
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai import chat, completions
from llm_inference.gateway.openai.intake import Envelope
from llm_inference.gateway.openai.protocol import ChatCompletionRequest, CompletionRequest
from llm_inference.gateway.openai.sampling import ALIASES, NEUTRAL, check_capabilities, sampling_params

INFO = FakeEngine("fake").info
CHAT = {"messages": [{"role": "user", "content": "x"}]}


def params(**fields: Any) -> SamplingParams:
    return sampling_params(ChatCompletionRequest.parse({**CHAT, **fields}), INFO)


def refused(message: str, **fields: Any) -> str | None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        params(**fields)
    return caught.value.param


def test_nothing_said_is_all_defaults() -> None:
    assert params() == SamplingParams()


def test_every_field_arrives() -> None:
    fields: dict[str, Any] = {
        "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3, "seed": 7, "ignore_eos": True,
        "include_stop_str_in_output": True, "skip_special_tokens": False, "num_beams": 3, "length_penalty": 0.5,
        "early_stopping": True,
    }  # fmt: skip
    got = params(**fields, logit_bias={"3": -1}, stop="x", stop_token_ids=[5], guided_regex="a")
    assert {name: getattr(got, name) for name in fields} == fields
    assert (got.logit_bias, got.stop, got.stop_token_ids) == ({3: -1.0}, ("x",), (5,))
    assert got.grammar is not None
    assert got.grammar.kind == "regex"


def test_aliases() -> None:
    for name in ("max_tokens", "max_completion_tokens", "max_new_tokens"):
        assert params(**{name: 5}).max_tokens == 5
    assert params(max_tokens=5, max_new_tokens=5).max_tokens == 5
    assert params(min_new_tokens=2).min_tokens == 2
    assert refused("mean the same", max_tokens=5, max_new_tokens=6) == "max_new_tokens"
    assert refused("mean the same", min_tokens=1, min_new_tokens=2) == "min_new_tokens"
    assert refused("more than the 3", min_tokens=4, max_tokens=3) == "min_tokens"


def test_do_sample() -> None:
    assert params(do_sample=False).temperature == 0.0
    assert params(do_sample=False, temperature=0).temperature == 0.0
    assert params(do_sample=True).temperature is None
    assert params(do_sample=True, temperature=0.7).temperature == 0.7
    assert refused("no effect", do_sample=False, temperature=0.7) == "temperature"
    assert refused("no effect", do_sample=True, temperature=0) == "do_sample"


def test_beams() -> None:
    assert refused("without num_beams", length_penalty=2) == "length_penalty"
    assert refused("without num_beams", early_stopping=True) == "early_stopping"
    assert params(length_penalty=1, early_stopping=False) == SamplingParams()
    with pytest.raises(InvalidRequestError, match="more than num_beams"):
        sampling_params(ChatCompletionRequest.parse({**CHAT, "num_beams": 2}), INFO, n=3)


def test_one_grammar_at_most() -> None:
    assert params(response_format={"type": "text"}).grammar is None
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    assert refused("one form", **both) == "structured_outputs"
    assert params(response_format={"type": "text"}, guided_choice=["a"]).grammar is not None


def test_tokens_outside_the_vocabulary() -> None:
    assert INFO.vocab_size == 258
    assert params(stop_token_ids=[257], logit_bias={"257": 1}).stop_token_ids == (257,)
    assert refused("outside", stop_token_ids=[258]) == "stop_token_ids"
    assert refused("outside", logit_bias={"258": 1}) == "logit_bias"
    assert refused("outside", forced_eos_token_id=258) == "forced_eos_token_id"
    assert params(forced_eos_token_id=257).forced_eos_token_id == 257


#: For every field that an engine may refuse: a value that asks for something, by request type.
ASKING: dict[str, Any] = {
    "top_k": 5, "min_p": 0.1, "seed": 0, "top_logprobs": 0, "n": 2, "frequency_penalty": 0.1, "presence_penalty": 0.1,
    "repetition_penalty": 1.1, "logit_bias": {"1": 1}, "min_tokens": 1, "stop_token_ids": [1], "ignore_eos": True,
    "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required",
    "parallel_tool_calls": False, "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"},
    "num_beams": 2, "length_penalty": 2.0, "early_stopping": True, "cache_salt": "s", "priority": 1,
    "chat_template_kwargs": {"a": 1}, "continue_final_message": True, "add_generation_prompt": False,
    "return_token_ids": True, "skip_special_tokens": False, "include_stop_str_in_output": True,
    "reasoning_effort": "low", "logprobs": True, "guided_json": {}, "guided_regex": "a", "guided_choice": ["a"],
    "guided_grammar": "a", "min_new_tokens": 1, "forced_eos_token_id": 2,
    "logits_processors": [{"name": "x", "args": {"size": 2}}],
}  # fmt: skip
ASKING_TEXT: dict[str, Any] = {"echo": True, "best_of": 2, "logprobs": 0, "add_special_tokens": False}


def test_the_table_below_is_complete() -> None:
    assert set(NEUTRAL) | set(ALIASES) == set(ASKING) | set(ASKING_TEXT)


@pytest.mark.parametrize("field", [*ASKING, *(f"text:{name}" for name in ASKING_TEXT)])
def test_engine_is_asked_for_every_field(field: str) -> None:
    text, _, name = field.rpartition(":")
    if text:
        parsed: Any = CompletionRequest.parse({"prompt": "x", name: ASKING_TEXT[name]})
    else:
        parsed = ChatCompletionRequest.parse({**CHAT, name: ASKING[name]})
    capability = ALIASES.get(name, name)
    nothing = Capabilities(reasons={capability: "no such thing here"})
    with pytest.raises(InvalidRequestError, match="no such thing here") as caught:
        check_capabilities(parsed, nothing, INFO)
    assert caught.value.param == name
    for support in ("enforced", "emulated"):
        check_capabilities(parsed, Capabilities(fields={capability: support}), INFO)  # type: ignore[dict-item]


def test_neutral_values_ask_for_nothing() -> None:
    neutral = {
        "top_k": -1, "min_p": 0, "logprobs": False, "n": 1, "frequency_penalty": 0, "presence_penalty": 0.0,
        "repetition_penalty": 1, "logit_bias": {}, "min_tokens": 0, "stop_token_ids": [], "ignore_eos": False,
        "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "response_format": {"type": "text"},
        "num_beams": 1, "length_penalty": 1, "early_stopping": False, "priority": 0, "chat_template_kwargs": {},
        "continue_final_message": False, "add_generation_prompt": True, "return_token_ids": False,
        "skip_special_tokens": True, "include_stop_str_in_output": False, "temperature": 0.3, "top_p": 0.5,
        "max_tokens": 5, "stop": ["x"], "user": "u", "stream": True, "metadata": {"a": "b"}, "logits_processors": [],
    }  # fmt: skip
    check_capabilities(ChatCompletionRequest.parse({**CHAT, **neutral}), Capabilities(), INFO)
    text = CompletionRequest.parse({"prompt": "x", "echo": False, "best_of": 1, "add_special_tokens": True})
    check_capabilities(text, Capabilities(), INFO)


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["text", "function", "auto", "json_schema", "user", "assistant", "tool", "required"]),
)  # fmt: skip
_KEYS = st.one_of(
    st.text(max_size=4),
    st.sampled_from(["type", "function", "name", "role", "content", "text", "json_schema", "schema", "tools", "regex",
                     "choice", "tool_calls", "allowed_tools", "mode", "parameters", "1", "include_usage"]),
)  # fmt: skip
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_json_is_a_request_or_a_400(data: st.DataObject) -> None:
    """Whatever a client sends: a request the engine can take, or an error of the caller's; never a defect of ours."""
    model, build, base = data.draw(
        st.sampled_from([
            (ChatCompletionRequest, chat.generate_request, CHAT),
            (CompletionRequest, completions.generate_requests, {"prompt": "x"}),
        ])
    )  # fmt: skip
    names = st.sampled_from([*model.model_fields, *model.refused, *model.inert])
    body = {**base, **data.draw(st.dictionaries(names, _JSON, min_size=1, max_size=3))}
    made: Any
    try:
        parsed: Any = model.parse(body)
        check_capabilities(parsed, FakeEngine("fake").capabilities, INFO)
        made = build(parsed, Envelope("id", 0, "fake"), INFO)
    except InvalidRequestError as error:
        made = [error.param, error.message]
    assert all(msgspec.to_builtins(made))
