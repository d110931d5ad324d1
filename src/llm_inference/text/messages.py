"""Chat messages as clients send them → messages as chat templates expect them.

Clients write OpenAI's shapes: content as a string or a list of parts, tool calls whose arguments are JSON text, nulls
for what is absent. Templates expect plain strings, arguments as objects, and no nulls. Knows nothing of templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from llm_inference.errors import InvalidRequestError

#: Part type → the key that holds its text.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def normalize_messages(messages: Iterable[Mapping[str, Any]], *, parse_arguments: bool = True) -> list[dict[str, Any]]:
    """New messages; the given ones stay as they are.

    - Content as a list of text parts is the parts' joined text, nothing between them, whatever the role.
    - `tool_calls` that is null or empty is absent; so is every other null. Content is "" where there is none, unless
      tool calls stand in its place.
    - A tool call's `arguments` that is JSON text of an object becomes that object (`parse_arguments`), else it stays.
    - Any role passes: which roles exist is the template's business.

    Raises `InvalidRequestError` naming the place for a part that is no text or a message without a role.
    """
    return [_message(message, f"messages[{i}]", parse_arguments) for i, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str, parse_arguments: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with `role` and `content`.", param=where)
    result = {key: value for key, value in message.items() if value is not None}
    if not isinstance(result.get("role"), str):
        raise InvalidRequestError(f"{where}.role is missing: say who speaks, as a string.", param=f"{where}.role")
    tool_calls = result.pop("tool_calls", None)
    if tool_calls:
        if not isinstance(tool_calls, (list, tuple)):
            raise InvalidRequestError(f"{where}.tool_calls must be a list.", param=f"{where}.tool_calls")
        result["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{i}]", parse_arguments) for i, call in enumerate(tool_calls)
        ]
    if "content" in result:
        result["content"] = _content(result["content"], f"{where}.content")
    elif not tool_calls:
        result["content"] = ""
    return result


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidRequestError(f"{where} must be a string or a list of text parts.", param=where)
    texts = []
    for i, part in enumerate(content):
        place = f"{where}[{i}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise InvalidRequestError(
                f"{place}.type is {kind!r}; this model reads only text parts ({', '.join(sorted(_TEXT_PARTS))}).",
                param=f"{place}.type",
            )
        text = part.get(key)
        if not isinstance(text, str):
            raise InvalidRequestError(f"{place}.{key} must be a string.", param=f"{place}.{key}")
        texts.append(text)
    return "".join(texts)


def _tool_call(call: Any, where: str, parse_arguments: bool) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise InvalidRequestError(f"{where} must be an object with a `function`.", param=where)
    function = dict(call["function"])
    arguments = function.get("arguments")
    if parse_arguments and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            function["arguments"] = parsed
    return {**call, "function": function}
