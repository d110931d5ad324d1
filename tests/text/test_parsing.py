from __future__ import annotations

import json
from typing import Any

import pytest

from llm_inference.engine.types import ChatPrompt, GenerateRequest, Grammar, SamplingParams
from llm_inference.errors import InvalidRequestError
from llm_inference.text.parsing import (
    PLAIN_TEXT,
    ModelFormats,
    forced_output,
    require_tools,
    shows_tools,
    with_allowed_tools,
)
from tests.text.parsers.reading import tool

PROMPT = ChatPrompt(messages=({"role": "user", "content": "Hi"},), tools=(tool("f"), tool("g")))


def ask(choice: Any, **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**sampling)
    return GenerateRequest(request_id="r", model="m", prompt=PROMPT, sampling=params, tool_choice=choice)


def test_a_forced_call_is_one_call_in_json_whatever_the_models_format() -> None:
    output = forced_output(ask("required"), PROMPT)
    assert output is not None
    assert (output.tool, output.reasoning, output.parallel) == ("json", None, False)
    assert output.grammar is not None
    assert len(json.loads(output.grammar.source)["anyOf"]) == 2
    parser = output.make_parser()
    assert parser is not None
    [call] = parser.add('{"name": "g", "arguments": {}}').tool_calls
    assert (call.name, call.arguments, parser.is_complete) == ("g", "{}", True)


def test_where_nothing_is_forced() -> None:
    assert forced_output(ask("auto"), PROMPT) is None
    assert forced_output(ask("required"), ChatPrompt(messages=PROMPT.messages)) is None
    assert PLAIN_TEXT.make_parser() is None


def test_one_output_cannot_have_two_forms() -> None:
    with pytest.raises(InvalidRequestError, match="response_format") as caught:
        forced_output(ask("required", grammar=Grammar("json_object", "")), PROMPT)
    assert caught.value.param == "tool_choice"


def test_tools_that_a_template_does_not_show() -> None:
    assert shows_tools("{{ tools }}")
    require_tools("{{ tools }}")
    blind = ModelFormats(tool=None, reasoning=None, template_has_tools=False)
    for refused in (lambda: require_tools("{{ messages }}"), lambda: with_allowed_tools(ask("auto"), blind)):
        with pytest.raises(InvalidRequestError) as caught:
            refused()
        assert caught.value.param == "tools"
    named = {"type": "function", "function": {"name": "g"}}
    assert with_allowed_tools(ask(named), blind).tools == (tool("g"),)
    assert with_allowed_tools(ask("none"), blind).tools == ()
