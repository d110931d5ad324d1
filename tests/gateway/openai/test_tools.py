from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai.tools import check_choice, tool_choice, tools


def function(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def test_tools_lose_their_nulls() -> None:
    given = [function("add", description=None, parameters={"type": "object", "properties": {}}), function("sub_2-b")]
    assert tools(given) == (function("add", parameters={"type": "object", "properties": {}}), function("sub_2-b"))
    assert tools([]) == ()


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "tools"),
        ([function(f"f{number}") for number in range(129)], "tools"),
        ([{"type": "custom"}], "tools[0].type"),
        (["x"], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([function("a b")], "tools[0].function.name"),
        ([function("x" * 65)], "tools[0].function.name"),
        ([function(None)], "tools[0].function.name"),
        ([function("a"), function("a")], "tools[1].function.name"),
        ([function("a", parameters="x")], "tools[0].function.parameters"),
        ([function("a", parameters={"type": "string"})], "tools[0].function.parameters.type"),
        ([function("a", strict="yes")], "tools[0].function.strict"),
        ([function("a", colour="red")], "tools[0].function.colour"),
    ],
)
def test_tools_that_are_refused(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        tools(value)
    assert caught.value.param == param


def test_choices() -> None:
    given = tools([function("a"), function("b")])
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("a")]}}
    for choice in ("none", "auto", "required", function("b"), allowed):
        checked = tool_choice(choice)
        assert checked == choice
        check_choice(checked, given)
    check_choice(None, ())
    check_choice("auto", ())
    check_choice("none", ())


@pytest.mark.parametrize(
    "choice", ["any", 7, True, {}, {"type": "function"}, {"type": "function", "function": {}}, function("a b"),
               {"type": "allowed_tools"}, {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}},
               {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
               {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]}}]
)  # fmt: skip
def test_choices_that_are_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        tool_choice(choice)
    assert (caught.value.param or "").startswith("tool_choice")


@pytest.mark.parametrize("choice", ["required", function("a")])
def test_choice_without_tools(choice: Any) -> None:
    with pytest.raises(InvalidRequestError, match="without tools"):
        check_choice(choice, ())


def test_choice_of_an_unknown_tool() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("c")]}}
    for choice in (function("c"), allowed):
        with pytest.raises(InvalidRequestError, match="'c', which is not among"):
            check_choice(tool_choice(choice), tools([function("a"), function("b")]))
