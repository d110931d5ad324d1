"""Grammars that force valid tool calls, for `tool_choice` "required", a named function, or required allowed tools.

A Lark grammar (the dialect of `native/grammar`) in the wire format that the model's own parser reads:

    start: call (separator call)*        call: <syntax> "name" <syntax> %json {schema of the arguments} <syntax>

Each tool's schema stays a document of its own, so that its `$ref`s keep pointing where they did. The arguments of a
tool with `strict` obey its schema entirely or are refused; of another tool, as far as the engine can enforce it.

Engines that constrain by JSON Schema alone get one instead (`tool_schema`): a single call object, which the parser
`json` reads.

Knows nothing of tokens and compiles nothing: a bad schema is found by the compiler's `check(grammar, "tools")`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError

#: A model that is forced to call, and may call more than once, must come to an end.
MAX_PARALLEL_CALLS = 16

_Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Format:
    """The syntax around name (as `{name}`, JSON-quoted as `{quoted}`) and arguments."""

    before_name: str
    after_arguments: str
    separator: str
    begin: str = ""
    end: str = ""


_FORMATS: Mapping[str, _Format] = {
    "hermes": _Format('<tool_call>\n{{"name": {quoted}, "arguments": ', "}\n</tool_call>", "\n"),
    "llama3_json": _Format('{{"name": {quoted}, "parameters": ', "}", "; "),
    "mistral": _Format('{{"name": {quoted}, "arguments": ', "}", ", ", "[TOOL_CALLS] [", "]"),
    "json": _Format('{{"name": {quoted}, "arguments": ', "}", ", ", "[", "]"),
}


def forced_parser(parser_name: str | None) -> str:
    """The parser that reads what `tool_grammar` forces: the model's own, or `json` where that has no grammar."""
    return parser_name if parser_name is not None and parser_name in _FORMATS else "json"


def allowed_tools(tools: _Tools, tool_choice: str | Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """The tools that may be called: what the template shows and the parser looks for.

    Raises `InvalidRequestError` (param `tool_choice`) for a choice that is malformed or names no tool.
    """
    if tool_choice is None or isinstance(tool_choice, str):
        if tool_choice not in (None, "none", "auto", "required"):
            raise _wrong(f"{tool_choice!r} is none of 'none', 'auto', 'required', a named function or allowed_tools")
        return () if tool_choice == "none" else tuple(tools)
    kind = tool_choice.get("type")
    if kind == "function":
        return (_find(tools, tool_choice, "tool_choice"),)
    if kind == "allowed_tools":
        _, listed = _allowed(tool_choice)
        return tuple(_find(tools, item, f"tool_choice.allowed_tools.tools[{i}]") for i, item in enumerate(listed))
    raise _wrong(f"the type {kind!r} is neither 'function' nor 'allowed_tools'")


def forces_call(tool_choice: str | Mapping[str, Any] | None) -> bool:
    """Whether the choice demands at least one call. Expects what `allowed_tools` has accepted."""
    if tool_choice is None or isinstance(tool_choice, str):
        return tool_choice == "required"
    return tool_choice.get("type") == "function" or _allowed(tool_choice)[0] == "required"


def tool_grammar(
    tools: _Tools,
    tool_choice: str | Mapping[str, Any] | None,
    parser_name: str | None,
    parallel: bool = True,
    *,
    in_reasoning: bool = False,
) -> Grammar | None:
    """A grammar whose every output `forced_parser(parser_name)` reads as calls; None where nothing is forced.

    A named function is called exactly once. `in_reasoning`: the prompt ends inside `<think>`, so free text up to
    `</think>` comes first. Raises `InvalidRequestError` like `allowed_tools`, and when there is nothing to call.
    """
    chosen = allowed_tools(tools, tool_choice)
    if not forces_call(tool_choice):
        return None
    if not chosen:
        raise _wrong("a call is required, but 'tools' offers no function")
    wire = _FORMATS[forced_parser(parser_name)]
    is_named = not isinstance(tool_choice, str) and tool_choice is not None and tool_choice.get("type") == "function"
    more = f" ({_quote(wire.separator)} call){{0,{MAX_PARALLEL_CALLS - 1}}}" if parallel and not is_named else ""
    calls = " ".join(part for part in (_quote(wire.begin), f"call{more}", _quote(wire.end)) if part)
    lines = [f"start: think {calls}" if in_reasoning else f"start: {calls}"]
    if in_reasoning:
        lines += ["think: thought /\\n{0,2}/", 'thought[suffix="</think>"]: /(.|\\n)*/']
    lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(chosen))))
    for index, tool in enumerate(chosen):
        function = tool["function"]
        before = wire.before_name.format(quoted=json.dumps(function["name"], ensure_ascii=False))
        lines.append(f"call_{index}: {_quote(before)} arguments_{index} {_quote(wire.after_arguments)}")
        lines.append(f"arguments_{index}: %json {json.dumps(_arguments_schema(function), ensure_ascii=False)}")
    return Grammar("grammar", "\n".join(lines) + "\n")


def tool_schema(tools: _Tools, tool_choice: str | Mapping[str, Any] | None) -> Grammar | None:
    """A JSON Schema of exactly one call, as the parser `json` reads it; None where nothing is forced.

    Raises `InvalidRequestError` as `tool_grammar` does.
    """
    chosen = allowed_tools(tools, tool_choice)
    if not forces_call(tool_choice):
        return None
    if not chosen:
        raise _wrong("a call is required, but 'tools' offers no function")
    calls = []
    for index, tool in enumerate(chosen):
        function = tool["function"]
        home = "#/properties/arguments" if len(chosen) == 1 else f"#/anyOf/{index}/properties/arguments"
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function["name"]},
                    "arguments": _moved(_parameters(function), home),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return Grammar("json_schema", json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls}, ensure_ascii=False))


def _moved(value: Any, home: str) -> Any:
    """A schema that now stands at `home` of another, with its references to itself."""
    if isinstance(value, Mapping):
        return {
            key: home + item[1:] if key == "$ref" and isinstance(item, str) and item[:1] == "#" else _moved(item, home)
            for key, item in value.items()
        }
    return [_moved(item, home) for item in value] if isinstance(value, list) else value


def _arguments_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """The function's parameters, with the options of the grammar's compiler inside."""
    options = {"lenient": not function.get("strict"), "whitespace_pattern": " ?"}
    return {**_parameters(function), "x-guidance": options}


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """The function's parameters as a schema that only objects satisfy."""
    parameters = function.get("parameters")
    if parameters is None:  # the API's word for a function without parameters
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(parameters, Mapping):
        raise InvalidRequestError(
            f"tools: the parameters of {function['name']!r} must be a JSON Schema object.", param="tools"
        )
    schema = dict(parameters)
    if not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf"}:
        schema["type"] = "object"
    return schema


def _allowed(tool_choice: Mapping[str, Any]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Mode and tools of an allowed_tools choice: nested in chat completions, flat in the Responses API."""
    inner = tool_choice.get("allowed_tools", tool_choice)
    if not isinstance(inner, Mapping):
        raise _wrong("'allowed_tools' must be an object with 'mode' and 'tools'")
    mode, listed = inner.get("mode"), inner.get("tools")
    if mode not in ("auto", "required"):
        raise _wrong("the mode of allowed_tools must be 'auto' or 'required'", "tool_choice.allowed_tools.mode")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise _wrong("the tools of allowed_tools must be a list with at least one", "tool_choice.allowed_tools.tools")
    return mode, listed


def _find(tools: _Tools, choice: Any, param: str) -> Mapping[str, Any]:
    function = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _wrong("a function is chosen by {'type': 'function', 'function': {'name': …}}", param)
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    raise _wrong(f"the function {name!r} is not among 'tools'", param)


def _wrong(reason: str, param: str = "tool_choice") -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {reason}.", param=param)


def _quote(text: str) -> str:
    """A Lark string, or nothing for the empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""
