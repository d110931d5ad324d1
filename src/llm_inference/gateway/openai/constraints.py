"""`response_format`, `structured_outputs` and the older `guided_*` fields → one `Grammar`.

Only shapes and sizes are checked here. Whether a schema, a regex or a grammar can be compiled is the engine's word,
which it speaks before the first token, so it still reaches the client as a 400.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from llm_inference.engine.types import Grammar
from llm_inference.gateway.openai.values import fail

#: Compilers take time and memory that grow with the source.
MAX_SOURCE_CHARS = 64 * 1024
MAX_CHOICES = 1024
_SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KINDS = ("json", "regex", "choice", "grammar", "json_object")

RESPONSE_FORMAT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "json_schema": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "description": {"type": "string"},
                "schema": {"type": "object"},
                "strict": {"type": "boolean"},
            },
        },
    },
}

STRUCTURED_OUTPUTS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Exactly one of these.",
    "properties": {
        "json": {"type": ["object", "string"]},
        "regex": {"type": "string"},
        "choice": {"type": "array", "items": {"type": "string"}},
        "grammar": {"type": "string"},
        "json_object": {"type": "boolean"},
    },
}


def response_format(value: Any) -> Grammar | None:
    """None for `text`. Raises `InvalidRequestError` with a path such as `response_format.json_schema.schema`."""
    if not isinstance(value, dict):
        raise fail("response_format", 'must be an object such as {"type": "json_object"}.')
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar("json_object", "{}")
    if kind != "json_schema":
        raise fail("response_format.type", "must be text, json_object or json_schema.")
    path = "response_format.json_schema"
    wrapper = value.get("json_schema")
    if not isinstance(wrapper, dict):
        raise fail(path, "must be an object with a name and a schema.")
    name = wrapper.get("name")
    if not isinstance(name, str) or not _SCHEMA_NAME.fullmatch(name):
        raise fail(f"{path}.name", "must be 1 to 64 letters, digits, underscores or hyphens.")
    return _json(wrapper.get("schema", {}), f"{path}.schema")


def structured_outputs(value: Any) -> Grammar:
    """Exactly one of json, regex, choice, grammar, json_object."""
    if not isinstance(value, dict):
        raise fail("structured_outputs", f"must be an object with one of {', '.join(_KINDS)}.")
    given = {key: item for key, item in value.items() if item is not None}
    unknown = [key for key in given if key not in _KINDS]
    if unknown:
        raise fail(f"structured_outputs.{unknown[0][:64]}", f"is unknown; known: {', '.join(_KINDS)}.")
    if len(given) != 1:
        raise fail("structured_outputs", f"must hold exactly one of {', '.join(_KINDS)}.")
    kind, source = next(iter(given.items()))
    return one(kind, source, f"structured_outputs.{kind}")


def one(kind: str, source: Any, path: str) -> Grammar:
    """A grammar of `kind` from the value at `path`."""
    if kind == "json":
        return _json(source, path)
    if kind == "json_object":
        if source is not True:
            raise fail(path, "must be true, or left out.")
        return Grammar("json_object", "{}")
    if kind == "choice":
        return _choice(source, path)
    if not isinstance(source, str) or not source:
        raise fail(path, "must be a non-empty string.")
    _check_size(source, path)
    return Grammar("regex" if kind == "regex" else "grammar", source)


def _json(source: Any, path: str) -> Grammar:
    if isinstance(source, str):
        try:
            source = msgspec.json.decode(source)
        except (msgspec.DecodeError, RecursionError) as error:
            raise fail(path, f"is not valid JSON: {error}") from error
    if not isinstance(source, dict):
        raise fail(path, "must be a JSON Schema, that is, an object.")
    text = msgspec.json.encode(source).decode()
    _check_size(text, path)
    return Grammar("json_schema", text)


def _choice(source: Any, path: str) -> Grammar:
    if not isinstance(source, list) or not source or not all(isinstance(item, str) and item for item in source):
        raise fail(path, "must be a non-empty list of non-empty strings.")
    if len(source) > MAX_CHOICES:
        raise fail(path, f"holds {len(source)} choices; the limit is {MAX_CHOICES}.")
    text = msgspec.json.encode(source).decode()
    _check_size(text, path)
    return Grammar("choice", text)


def _check_size(source: str, path: str) -> None:
    if len(source) > MAX_SOURCE_CHARS:
        raise fail(path, f"has {len(source)} characters; the limit is {MAX_SOURCE_CHARS}.")
