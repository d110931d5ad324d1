"""Only what its compiler is certain to take gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_inference.adapters.library.openvino_grammar import MAX_DEPTH, translate_grammar
from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def nested(depth: int) -> Any:
    return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "string"}


def test_choices_are_a_regular_expression() -> None:
    made = translate_grammar(Grammar("choice", '["a (b)", "c|d"]'))
    assert (made.kind, made.source) == ("regex", r"(a \(b\)|c\|d)")


def test_any_object() -> None:
    assert translate_grammar(Grammar("json_object", "")).kind == "json_schema"


@pytest.mark.parametrize(
    "value",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
        {"anyOf": [{"type": "null"}, {"enum": [1, "x"]}, {"const": 3}]},
        {"type": "array", "items": {"type": ["string", "null"]}, "description": "any"},
        nested(MAX_DEPTH),
    ],
)
def test_plain_schemas(value: Any) -> None:
    assert json.loads(translate_grammar(schema(value)).source) == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"pattern": "(("}, "pattern"),
        ({"type": "thing"}, "thing"),
        ({"$ref": "#"}, "ref"),
        ({"enum": []}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"required": ["a"]}, "required"),
        ({"properties": {"a": False}}, "object or true"),
        (nested(MAX_DEPTH + 1), "deep"),
        ({"anyOf": [{"type": "null"}] * 600}, "parts"),
    ],
)
def test_other_schemas_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        translate_grammar(schema(value))


@pytest.mark.parametrize("grammar", [Grammar("regex", "a+"), Grammar("grammar", "start: x")])
def test_what_may_not_compile_is_refused(grammar: Grammar) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        translate_grammar(grammar)


def test_choices_have_a_bound() -> None:
    for choices in ([""], ["a" * 20_000]):
        with pytest.raises(InvalidRequestError, match="choices"):
            translate_grammar(Grammar("choice", json.dumps(choices)))
