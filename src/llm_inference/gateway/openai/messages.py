"""Chat messages: checked, and brought to one form, that in which chat templates read them.

Content given as text parts becomes the joined string; `tool_calls: []` and every null disappear; `reasoning` and
`reasoning_content` are one thing and leave as `reasoning_content`. Who templates the result is not known here.
"""

from __future__ import annotations

from typing import Any

from llm_inference.gateway.openai.values import fail

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")

#: Keys that a role may carry besides `role` and `content`.
_KEYS: dict[str, frozenset[str]] = {
    "system": frozenset({"name"}),
    "developer": frozenset({"name"}),
    "user": frozenset({"name"}),
    "assistant": frozenset({"name", "tool_calls", "reasoning", "reasoning_content", "refusal", "annotations"}),
    "tool": frozenset({"name", "tool_call_id"}),
}

#: For the API document; the checks below are the truth.
MESSAGES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        },
                    },
                    {"type": "null"},
                ]
            },
            "name": {"type": "string"},
            "tool_call_id": {"type": "string"},
            "tool_calls": {"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
            "reasoning": {"type": "string"},
            "reasoning_content": {"type": "string"},
        },
    },
}


def messages(value: Any) -> tuple[dict[str, Any], ...]:
    """The checked conversation. Raises `InvalidRequestError` with a path such as `messages[2].content`."""
    if not isinstance(value, list) or not value:
        raise fail("messages", "must be a non-empty list of messages.")
    if len(value) > MAX_MESSAGES:
        raise fail("messages", f"holds {len(value)} messages; the limit is {MAX_MESSAGES}.")
    return tuple(_message(message, f"messages[{place}]") for place, message in enumerate(value))


def _message(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise fail(path, "must be an object with a role and content.")
    given = {key: item for key, item in value.items() if item is not None}
    role = given.get("role")
    if not isinstance(role, str) or role not in _KEYS:
        hint = "; the legacy role 'function' is now 'tool'" if role == "function" else ""
        raise fail(f"{path}.role", f"must be one of {', '.join(ROLES)}{hint}.")
    for key in given:
        if key not in ("role", "content") and key not in _KEYS[role]:
            raise fail(f"{path}.{key[:64]}", f"has no meaning in a message of role {role!r}.")
    message: dict[str, Any] = {"role": role}
    calls = _tool_calls(given.get("tool_calls", []), f"{path}.tool_calls")
    if "content" in given:
        message["content"] = _content(given["content"], f"{path}.content")
    elif isinstance(given.get("refusal"), str):
        message["content"] = given["refusal"]  # what the assistant said then was its refusal
    elif role == "assistant" and (calls or "content" in value or "reasoning" in given or "reasoning_content" in given):
        message["content"] = ""  # clients send back `content: null` as they received it
    else:
        raise fail(f"{path}.content", "is required.")
    for key in ("name", "tool_call_id", "reasoning", "reasoning_content", "refusal"):
        if key in given and not isinstance(given[key], str):
            raise fail(f"{path}.{key}", "must be a string.")
    for key in ("name", "tool_call_id"):
        if key in given:
            message[key] = given[key]
    reasoning = given.get("reasoning_content", given.get("reasoning"))
    if reasoning:
        message["reasoning_content"] = reasoning
    if role == "tool" and "tool_call_id" not in given:
        raise fail(f"{path}.tool_call_id", "is required: the id of the tool call that this message answers.")
    if calls:
        message["tool_calls"] = calls
    return message


def _content(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fail(path, "must be a string or a list of text parts.")
    pieces = []
    for place, part in enumerate(value):
        where = f"{path}[{place}]"
        if not isinstance(part, dict):
            raise fail(where, 'must be an object such as {"type": "text", "text": "…"}.')
        kind = part.get("type")
        if kind != "text":
            shown = repr(kind[:64]) if isinstance(kind, str) else "of no type"
            raise fail(f"{where}.type", f"a part {shown} is not supported: text parts only.")
        if not isinstance(part.get("text"), str):
            raise fail(f"{where}.text", "must be a string.")
        pieces.append(part["text"])
    return "".join(pieces)


def _tool_calls(value: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise fail(path, "must be a list of tool calls.")
    calls = []
    for place, call in enumerate(value):
        where = f"{path}[{place}]"
        if not isinstance(call, dict) or call.get("type", "function") != "function":
            raise fail(where, 'must be an object with "type": "function".')
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise fail(f"{where}.function.name", "must be a non-empty string.")
        arguments = function.get("arguments", "{}")
        if not isinstance(arguments, str):
            raise fail(f"{where}.function.arguments", "must be a string that holds JSON.")
        checked = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        identity = call.get("id")
        if identity is not None:
            if not isinstance(identity, str):
                raise fail(f"{where}.id", "must be a string.")
            checked["id"] = identity
        calls.append(checked)
    return calls
