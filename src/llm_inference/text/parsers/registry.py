"""Which parser has which name, which one a chat template calls for, and how to put one together for a request.

Built-ins and plugins (entry-point group `llm_inference.parsers`) come through the same door: `name -> "module:Class"`,
imported when first used. A tool parser's class is called with `(tool_names, *, parallel)`, a reasoning parser's with
`(*, starts_in_reasoning)`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from llm_inference.errors import ConfigError
from llm_inference.text.parsers.base import OutputParser, PlainText
from llm_inference.text.parsers.think import ReasoningThenTools

ENTRY_POINT_GROUP = "llm_inference.parsers"

_PARSERS = "llm_inference.text.parsers"
TOOL_PARSERS: Mapping[str, str] = {
    "hermes": f"{_PARSERS}.hermes:HermesParser",
    "llama3_json": f"{_PARSERS}.llama3_json:Llama3JsonParser",
    "mistral": f"{_PARSERS}.mistral:MistralParser",
    "pythonic": f"{_PARSERS}.pythonic:PythonicParser",
    "json": f"{_PARSERS}.json_calls:JsonCallsParser",
}
REASONING_PARSERS: Mapping[str, str] = {
    "think": f"{_PARSERS}.think:ThinkParser",
}

#: Special tokens that a parser must see as text although special tokens are skipped elsewhere.
_MARKERS: Mapping[str, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "think": ("<think>", "</think>"),
}


def detect(chat_template: str | None) -> str | None:
    """The tool parser that fits what the template teaches the model, or None: it teaches no format known here."""
    template = chat_template or ""
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template:
        # The same marker around XML-like bodies is another format.
        return None if any(other in template for other in ("<function=", "<arg_key>", "<parameter=")) else "hermes"
    if "<|python_start|>" in template or "[func_name1(" in template:
        return "pythonic"
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return "llama3_json"
    return None


def detect_reasoning(chat_template: str | None) -> str | None:
    """The reasoning parser that fits the template, or None."""
    return "think" if chat_template and "</think>" in chat_template else None


def markers(tool_parser: str | None, reasoning_parser: str | None = None) -> tuple[str, ...]:
    """Texts that must reach the parser: where they are special tokens, detokenise them even when skipping those."""
    return (*_MARKERS.get(tool_parser or "", ()), *_MARKERS.get(reasoning_parser or "", ()))


def make_parser(
    tool_parser: str | None,
    reasoning_parser: str | None = None,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    parallel: bool = True,
    starts_in_reasoning: bool = False,
) -> OutputParser:
    """A fresh parser for one choice of one request.

    `tools` as in the request. Without tools, calls are not looked for. With `parallel` off the parser is complete
    after the first call. Raises `ConfigError` for an unknown name.
    """
    names = tool_names(tools)
    tool: OutputParser | None = None
    if tool_parser is not None and names:
        tool = _load("tool_parser", tool_parser, TOOL_PARSERS)(names, parallel=parallel)
    if reasoning_parser is None:
        return tool or PlainText()
    reasoning: OutputParser = _load("reasoning_parser", reasoning_parser, REASONING_PARSERS)(
        starts_in_reasoning=starts_in_reasoning
    )
    return reasoning if tool is None else ReasoningThenTools(reasoning, tool)


def check_names(tool_parser: str | None, reasoning_parser: str | None = None) -> None:
    """At start-up: raises `ConfigError` if a configured name is unknown or its module does not import."""
    if tool_parser is not None:
        _load("tool_parser", tool_parser, TOOL_PARSERS)
    if reasoning_parser is not None:
        _load("reasoning_parser", reasoning_parser, REASONING_PARSERS)


def tool_names(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The functions' names of a request's `tools`, in order."""
    return tuple(tool["function"]["name"] for tool in tools)


def _load(key: str, name: str, built_in: Mapping[str, str]) -> Any:
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return getattr(import_module(module), attribute)
    plugins = entry_points(group=ENTRY_POINT_GROUP)
    for plugin in plugins:
        if plugin.name == name:
            try:
                return plugin.load()
            except Exception as error:  # whatever a plugin's import raises
                raise ConfigError(f"{key}: the plugin {name!r} ({plugin.value}) does not load: {error}") from error
    raise ConfigError(_unknown(key, name, sorted({*built_in, *(plugin.name for plugin in plugins)})))


def _unknown(key: str, name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{key}: no parser is called {name!r}.{hint} Known: {', '.join(known)}."
