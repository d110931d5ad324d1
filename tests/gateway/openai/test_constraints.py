from __future__ import annotations

import json
from typing import Any

import pytest

from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai.constraints import one, response_format, structured_outputs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def schema_format(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}


def test_response_formats() -> None:
    assert response_format({"type": "text"}) is None
    assert response_format({"type": "json_object"}) == Grammar("json_object", "{}")
    grammar = response_format(schema_format(strict=True))
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.source)) == ("json_schema", SCHEMA)


def test_structured_outputs_and_their_older_names() -> None:
    for kind, source in (("regex", "[ab]+"), ("grammar", "start: X"), ("choice", ["a", "b"]), ("json", SCHEMA)):
        grammar = structured_outputs({kind: source, "json_object": None})
        assert grammar == one(kind, source, f"guided_{kind}")
        assert grammar.kind == ("json_schema" if kind == "json" else kind)
        assert grammar.source == source or json.loads(grammar.source) == source
    assert structured_outputs({"json": json.dumps(SCHEMA)}) == structured_outputs({"json": SCHEMA})
    assert structured_outputs({"json_object": True}).kind == "json_object"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json_object", "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        (schema_format(name=None), "response_format.json_schema.name"),
        (schema_format(name="a b"), "response_format.json_schema.name"),
        (schema_format(schema=7), "response_format.json_schema.schema"),
        (schema_format(schema={"x": "y" * 70_000}), "response_format.json_schema.schema"),
    ],
)
def test_response_formats_that_are_refused(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        response_format(value)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("a", "structured_outputs"),
        ({}, "structured_outputs"),
        ({"regex": "a", "grammar": "b"}, "structured_outputs"),
        ({"pattern": "a"}, "structured_outputs.pattern"),
        ({"regex": ""}, "structured_outputs.regex"),
        ({"regex": 7}, "structured_outputs.regex"),
        ({"regex": "a" * 70_000}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": [""]}, "structured_outputs.choice"),
        ({"choice": ["a"] * 1025}, "structured_outputs.choice"),
        ({"choice": ["x" * 70_000]}, "structured_outputs.choice"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": "[]"}, "structured_outputs.json"),
        ({"json_object": False}, "structured_outputs.json_object"),
    ],
)
def test_structured_outputs_that_are_refused(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        structured_outputs(value)
    assert caught.value.param == param
