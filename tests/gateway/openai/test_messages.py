from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai.messages import messages


def only(message: dict[str, Any]) -> dict[str, Any]:
    (checked,) = messages([message])
    return checked


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_text_parts_are_the_joined_string_on_every_role(role: str) -> None:
    """H3."""
    more = {"tool_call_id": "c"} if role == "tool" else {}
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "world"}]
    assert only({"role": role, "content": parts, **more}) == only({"role": role, "content": "Hello, world", **more})


@pytest.mark.parametrize("calls", [[], None])
@pytest.mark.parametrize("content", ["hi", None])
def test_no_tool_calls_is_a_plain_message(calls: Any, content: str | None) -> None:
    """H2."""
    message = only({"role": "assistant", "content": content, "tool_calls": calls, "refusal": None, "audio": None})
    assert message == {"role": "assistant", "content": content or ""}


def test_tool_calls_and_their_answers() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert only({"role": "assistant", "content": None, "tool_calls": [call]}) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [call],
    }
    answer = {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"}
    assert only(answer) == answer


def test_reasoning_has_one_name_inside() -> None:
    for key in ("reasoning", "reasoning_content"):
        assert only({"role": "assistant", "content": "4", key: "2+2"})["reasoning_content"] == "2+2"
    assert "reasoning_content" not in only({"role": "assistant", "content": "4", "reasoning": None})


def test_a_refusal_is_what_was_said() -> None:
    assert only({"role": "assistant", "refusal": "No."})["content"] == "No."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("text", "messages[0]"),
        ({}, "messages[0].role"),
        ({"role": "boss", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "tool_calls": []}, "messages[0].tool_calls"),
        ({"role": "user", "content": "x", "colour": "red"}, "messages[0].colour"),
        ({"role": "user", "content": "x", "name": 1}, "messages[0].name"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "f"}}]},
            "messages[0].tool_calls[0].id",
        ),
    ],
)
def test_what_is_refused(message: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        messages([message])
    assert caught.value.param == param


def test_the_list_itself() -> None:
    for wrong in ([], {}, "x", [{"role": "user", "content": "x"}] * 4097):
        with pytest.raises(InvalidRequestError) as caught:
            messages(wrong)
        assert caught.value.param == "messages"
