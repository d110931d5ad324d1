"""Schemas that can be enforced, and grammars that must be refused: kind, source, and a word of the message."""

from __future__ import annotations

import json
from typing import Any

from llm_inference.native.grammar_source import MAX_CHOICES, MAX_SCHEMA_DEPTH, MAX_SOURCE_BYTES

SCHEMAS: dict[str, Any] = {
    "empty object": {"type": "object", "additionalProperties": False},
    "any object": {"type": "object"},
    "flat": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "optional properties": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"type": "number"}},
        "additionalProperties": False,
    },
    "typed further properties": {"type": "object", "additionalProperties": {"type": "integer"}},
    "enum of strings": {"enum": ["red", "green", "blue", "a \"quoted\" one"]},
    "enum of everything": {"enum": [1, -2.5, True, None, "x", [1, 2], {"a": 1}]},
    "const": {"const": {"nested": [1, "two", None]}},
    "array bounds": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    "array exactly": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
    "prefix items": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 5}, {"type": "integer"}],
        "items": False,
        "minItems": 2,
    },
    "nested arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "array", "items": {"const": 0}, "maxItems": 2}, "maxItems": 2},
        "maxItems": 2,
    },
    "string lengths": {"type": "string", "minLength": 3, "maxLength": 6},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "unanchored pattern": {"type": "string", "pattern": "[0-9]{2}"},
    "pattern with alternatives": {"type": "string", "pattern": "^(https?|ftp)://[a-z]{1,8}\\.(org|net)$"},
    "unicode enum": {"enum": ["日本語", "émoji 🎉", "ß"]},
    "unicode property": {"type": "object", "properties": {"größe": {"const": "日本"}}, "required": ["größe"],
                         "additionalProperties": False},
    "unicode pattern": {"type": "string", "pattern": "^[äöü]{2,4}$"},
    "integer range": {"type": "integer", "minimum": -5, "maximum": 17},
    "exclusive range": {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 12},
    "number range": {"type": "number", "minimum": 0, "maximum": 1},
    "large range": {"type": "integer", "minimum": 1000, "maximum": 123456},
    "multiple of": {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 25},
    "several types": {"type": ["string", "null", "integer"]},
    "any of": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    "optional by null": {"type": "object", "properties": {"x": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
                         "required": ["x"], "additionalProperties": False},
    "one of, disjoint": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}},
             "required": ["kind", "n"], "additionalProperties": False},
            {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": "string"}},
             "required": ["kind", "s"], "additionalProperties": False},
        ]
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"enum": ["x", "y"]}}, "required": ["b"]},
        ],
    },
    "defs": {
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                            "required": ["x", "y"], "additionalProperties": False}},
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        "additionalProperties": False,
    },
    "old definitions": {"definitions": {"n": {"type": "integer"}}, "type": "array",
                        "items": {"$ref": "#/definitions/n"}, "maxItems": 3},
    "recursive": {
        "$defs": {"tree": {"type": "object", "properties": {
            "value": {"type": "integer"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            "required": ["value"], "additionalProperties": False}},
        "$ref": "#/$defs/tree",
    },
    "deep": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "object",
             "properties": {"c": {"enum": [1, 2]}}, "required": ["c"], "additionalProperties": False}},
             "required": ["b"], "additionalProperties": False}}, "required": ["a"], "additionalProperties": False},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "annotations are ignored": {"title": "T", "description": "d", "default": 1, "examples": [1], "type": "integer"},
}  # fmt: skip

BAD: dict[str, tuple[str, str, str]] = {
    "unknown type": ("json_schema", '{"type": "strin"}', "strin"),
    "type of the wrong kind": ("json_schema", '{"type": 5}', "type"),
    "wrong type inside": ("json_schema", '{"type": "object", "properties": {"a": {"type": "foo"}}}', "foo"),
    "properties is a list": ("json_schema", '{"type": "object", "properties": []}', "properties"),
    "required is a text": ("json_schema", '{"type": "object", "required": "a"}', "required"),
    "reference to nothing": ("json_schema", '{"$ref": "#/$defs/x"}', "$defs/x"),
    "reference to elsewhere": ("json_schema", '{"$ref": "http://localhost/x.json"}', "x.json"),
    "bad pattern": ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
    "keyword that is not enforced": ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    "unknown format": ("json_schema", '{"type": "string", "format": "colour"}', "colour"),
    "no document satisfies it": ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}', "5"),
    "not JSON": ("json_schema", '{"type": ', "not JSON"),
    "splices": ("json_schema", '{}}], "grammars": [{"json_schema": {}', "not JSON"),
    "NaN": ("json_schema", '{"const": NaN}', "NaN"),
    "not an object": ("json_schema", '"string"', "must be an object"),
    "half a surrogate pair": ("choice", '["\\ud83d"]', "surrogate"),
    "deep": ("json_schema", '{"items":' * 80 + "{}" + "}" * 80, str(MAX_SCHEMA_DEPTH)),
    "very deep": ("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000, str(MAX_SCHEMA_DEPTH)),
    "regex": ("regex", "(", "unclosed group"),
    "look-ahead": ("regex", "(?=a)b", "look-around"),
    "back-reference": ("regex", r"(a)\1", "backreference"),
    "impossible regex": ("regex", r"[^\s\S]", "no text"),
    "nested groups": ("regex", "(?:" * 500 + "a" + ")" * 500, "nest"),
    "choices are no list": ("choice", '{"a": 1}', "list"),
    "no choices": ("choice", "[]", "at least one"),
    "an empty choice": ("choice", '["a", ""]', "empty"),
    "a number as choice": ("choice", "[1]", "list"),
    "too many choices": ("choice", json.dumps([str(i) for i in range(MAX_CHOICES + 1)]), str(MAX_CHOICES)),
    "lark without start": ("grammar", 'foo: "a"', "start"),
    "lark that is none": ("grammar", "start: ((", ""),
    "lark without an end": ("grammar", 'start: a\na: a "x"', "no text"),
    "lark with an unknown token": ("grammar", 'start: <|nope|> "a"', "nope"),
    "lark with an unknown rule": ("grammar", "start: missing", "missing"),
    "large": ("regex", "x" * (MAX_SOURCE_BYTES + 1), str(MAX_SOURCE_BYTES)),
}  # fmt: skip
