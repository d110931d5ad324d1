"""Names, templates, plugins."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.text.parsers import registry
from llm_inference.text.parsers.base import PlainText
from llm_inference.text.parsers.hermes import HermesParser
from llm_inference.text.parsers.registry import REASONING_PARSERS, TOOL_PARSERS, detect, detect_reasoning, make_parser
from llm_inference.text.parsers.think import ReasoningThenTools, ThinkParser
from tests.text.parsers.reading import TOOLS, read


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, None),
        ("{% for message in messages %}{{ message.content }}{% endfor %}", None),
        ('<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>', "hermes"),
        ("<tool_call>\\n<function=example>\\n<parameter=a>", None),
        ("<tool_call>{name}<arg_key>", None),
        ("{{ '[TOOL_CALLS] [' }}", "mistral"),
        ("<|start_header_id|> {{ '<|python_tag|>' }}", "llama3_json"),
        ('<|start_header_id|> {"name": function name, "parameters": {}}', "llama3_json"),
        ("<|start_header_id|>{{ message.content }}", None),
        ("[func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"),
        ("<|python_start|>", "pythonic"),
    ],
)
def test_templates_tell_the_format(template: str | None, name: str | None) -> None:
    assert detect(template) == name


def test_templates_tell_the_reasoning() -> None:
    assert detect_reasoning("{% if '</think>' in content %}") == "think"
    assert detect_reasoning("plain") is None
    assert detect_reasoning(None) is None


def test_what_is_put_together() -> None:
    assert isinstance(make_parser(None, tools=TOOLS), PlainText)
    assert isinstance(make_parser("hermes", tools=()), PlainText)
    assert isinstance(make_parser("hermes", tools=TOOLS), HermesParser)
    assert isinstance(make_parser(None, "think", tools=TOOLS), ThinkParser)
    assert isinstance(make_parser("hermes", "think"), ThinkParser)
    assert isinstance(make_parser("hermes", "think", tools=TOOLS), ReasoningThenTools)


def test_every_built_in_name_loads() -> None:
    for name in TOOL_PARSERS:
        registry.check_names(name)
        assert not make_parser(name, tools=TOOLS).saw_tool_call
    for name in REASONING_PARSERS:
        registry.check_names(None, name)
        assert not make_parser(None, name).saw_tool_call


def test_markers_of_both_parsers() -> None:
    assert registry.markers("mistral") == ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    assert registry.markers("hermes", "think") == ("<tool_call>", "</tool_call>", "<think>", "</think>")
    assert registry.markers(None) == ()
    assert registry.markers("json") == ()


@pytest.mark.parametrize(("tool", "reasoning", "part"), [("herms", None, "'hermes'"), (None, "thonk", "'think'")])
def test_an_unknown_name_is_answered_with_the_nearest(tool: str | None, reasoning: str | None, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.check_names(tool, reasoning)
    assert f"Did you mean {part}?" in caught.value.message
    with pytest.raises(ConfigError, match="no parser is called"):
        make_parser(tool or "hermes", reasoning, tools=TOOLS)


class ShoutingParser(HermesParser):
    """A plugin's parser."""


def install(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    def entry_points(**selection: Any) -> EntryPoints:
        return EntryPoints([EntryPoint("shouting", value, registry.ENTRY_POINT_GROUP)]).select(**selection)

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_a_plugin_comes_through_the_same_door(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, f"{__name__}:ShoutingParser")
    parser = make_parser("shouting", tools=TOOLS)
    assert isinstance(parser, ShoutingParser)
    assert read(parser, ['<tool_call>{"name": "f"}']).calls == [("f", "{}")]
    with pytest.raises(ConfigError, match="shouting"):
        registry.check_names("quiet")


def test_a_plugin_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "no_such_module:Parser")
    with pytest.raises(ConfigError, match=r"shouting.*no_such_module"):
        registry.check_names("shouting")
