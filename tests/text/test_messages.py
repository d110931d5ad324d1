from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import InvalidRequestError
from llm_inference.text.messages import normalize_messages


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "narrator"])
def test_text_parts_are_the_joined_string_on_every_role(role: str) -> None:  # H3
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert normalize_messages([{"role": role, "content": parts}]) == [{"role": role, "content": "one two"}]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "input_text", "text": "a"}, "a"),
        ({"type": "output_text", "text": "a"}, "a"),
        ({"type": "refusal", "refusal": "no"}, "no"),
        ("plain", "plain"),
    ],
)
def test_other_spellings_of_text(part: Any, text: str) -> None:
    assert normalize_messages([{"role": "user", "content": [part]}])[0]["content"] == text


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
            "messages[1].content[1].type",
        ),
        ({"role": "user", "content": [{"text": "no type"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [7]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 7}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": {"type": "text"}}, "messages[1].content"),
        ({"content": "who?"}, "messages[1].role"),
        ("hello", "messages[1]"),
        ({"role": "assistant", "tool_calls": "f()"}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": None}]}, "messages[1].tool_calls[0]"),
    ],
)
def test_errors_name_the_place(message: Any, param: str) -> None:  # H3
    with pytest.raises(InvalidRequestError) as caught:
        normalize_messages([{"role": "user", "content": "fine"}, message])
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize("tool_calls", [None, []])
def test_no_tool_calls_is_a_plain_message(tool_calls: Any) -> None:  # H2
    message = {"role": "assistant", "content": "hi", "tool_calls": tool_calls, "refusal": None}
    assert normalize_messages([message]) == [{"role": "assistant", "content": "hi"}]


def test_missing_content_is_empty_unless_tools_were_called() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert normalize_messages([{"role": "assistant", "content": None}])[0]["content"] == ""
    assert "content" not in normalize_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{}", {}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ("7", "7"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_become_an_object_if_they_are_one(given: Any, expected: Any) -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": given}}]}
    function = normalize_messages([message])[0]["tool_calls"][0]["function"]
    assert function == {"name": "f", "arguments": expected}
    assert message["tool_calls"] == [{"id": "c", "function": {"name": "f", "arguments": given}}]  # not changed
    kept = normalize_messages([message], parse_arguments=False)
    assert kept[0]["tool_calls"][0]["function"]["arguments"] == given


def test_further_keys_pass() -> None:
    message = {"role": "tool", "content": "1", "tool_call_id": "c", "name": "f"}
    assert normalize_messages([message]) == [message]
