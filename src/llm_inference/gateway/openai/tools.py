"""`tools` and `tool_choice`: checked here, made into prompts and grammars by the engine's side."""

from __future__ import annotations

import re
from typing import Any

from llm_inference.gateway.openai.values import fail

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

ToolChoice = str | dict[str, Any]

TOOLS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "maxItems": MAX_TOOLS,
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "pattern": f"^{_NAME.pattern}$"},
                    "description": {"type": "string"},
                    "parameters": {"type": "object"},
                    "strict": {"type": "boolean"},
                },
            },
        },
    },
}

TOOL_CHOICE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["function", "allowed_tools"]}}},
    ]
}


def tools(value: Any) -> tuple[dict[str, Any], ...]:
    """The checked tools, nulls dropped. Raises `InvalidRequestError` with a path such as `tools[1].function.name`."""
    if not isinstance(value, list):
        raise fail("tools", "must be a list of tools.")
    if len(value) > MAX_TOOLS:
        raise fail("tools", f"holds {len(value)} tools; the limit is {MAX_TOOLS}.")
    checked = [_tool(tool, f"tools[{place}]") for place, tool in enumerate(value)]
    seen: set[str] = set()
    for place, tool in enumerate(checked):
        name = tool["function"]["name"]
        if name in seen:
            raise fail(f"tools[{place}].function.name", f"{name!r} is given twice.")
        seen.add(name)
    return tuple(checked)


def _tool(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") != "function":
        raise fail(f"{path}.type", 'must be "function": no other kind of tool is supported.')
    function = value.get("function")
    if not isinstance(function, dict):
        raise fail(f"{path}.function", "must be an object with a name.")
    _check_name(function.get("name"), f"{path}.function.name")
    for key, item in function.items():
        kind: type = {"name": str, "description": str, "parameters": dict, "strict": bool}.get(key, type(None))
        if item is not None and not isinstance(item, kind):
            raise fail(f"{path}.function.{key[:64]}", "is unknown or of the wrong type.")
    parameters = function.get("parameters")
    if parameters is not None and parameters.get("type", "object") != "object":
        raise fail(f"{path}.function.parameters.type", 'must be "object": arguments are named.')
    return {"type": "function", "function": {key: item for key, item in function.items() if item is not None}}


def tool_choice(value: Any) -> ToolChoice:
    """The checked form: one of the three words, a named function, or `allowed_tools` with its mode and tools."""
    if value in ("none", "auto", "required"):
        return str(value)
    if isinstance(value, dict) and value.get("type") == "function":
        function = value.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        _check_name(name, "tool_choice.function.name")
        return {"type": "function", "function": {"name": name}}
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _allowed_tools(value.get("allowed_tools"))
    raise fail("tool_choice", 'must be "none", "auto", "required", a named function or allowed_tools.')


def _allowed_tools(value: Any) -> dict[str, Any]:
    path = "tool_choice.allowed_tools"
    if not isinstance(value, dict) or value.get("mode") not in ("auto", "required"):
        raise fail(f"{path}.mode", 'must be "auto" or "required".')
    entries = value.get("tools")
    if not isinstance(entries, list) or not entries:
        raise fail(f"{path}.tools", "must be a non-empty list of tools.")
    allowed = []
    for place, entry in enumerate(entries):
        function = entry.get("function") if isinstance(entry, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        _check_name(name, f"{path}.tools[{place}].function.name")
        allowed.append({"type": "function", "function": {"name": name}})
    return {"type": "allowed_tools", "allowed_tools": {"mode": value["mode"], "tools": allowed}}


def check_choice(choice: ToolChoice | None, given: tuple[dict[str, Any], ...]) -> None:
    """The choice refers to tools that are there. Raises `InvalidRequestError`."""
    if choice is None or choice in ("none", "auto"):
        return
    if not given:
        raise fail("tool_choice", "would have no effect without tools.")
    if isinstance(choice, str):
        return
    names = [tool["function"]["name"] for tool in given]
    wanted = [choice] if choice["type"] == "function" else choice["allowed_tools"]["tools"]
    for entry in wanted:
        if entry["function"]["name"] not in names:
            raise fail("tool_choice", f"names {entry['function']['name']!r}, which is not among the tools: {names}.")


def _check_name(name: Any, path: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise fail(path, "must be 1 to 64 letters, digits, underscores or hyphens.")
