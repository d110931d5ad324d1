"""Constraints for OpenVINO GenAI: only such as its compiler is certain to take.

A grammar that it cannot compile fails in the middle of a step, and with it every request that runs (2026.4). So what a
client writes is let through only where nothing can go wrong with it: choices, any JSON object, and JSON Schemas made of
plain keywords. Everything else is refused before.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llm_inference.adapters.dialect import refuse, schema_or_regex
from llm_inference.adapters.library.wire import Grammar as WorkerGrammar
from llm_inference.engine.types import Grammar

#: Nesting and number of schemas beyond which compiling may take long.
MAX_DEPTH = 16
MAX_SCHEMAS = 512
MAX_CHOICE_CHARS = 16_384

_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
#: The second line's mean nothing to the compiler.
_KEYWORDS = frozenset(
    (
        *("type", "properties", "required", "items", "additionalProperties", "enum", "const", "anyOf"),
        *("title", "description", "default", "examples", "$schema"),
    )
)
_NAME = "openvino"


class _NotCertain(Exception):
    """What is wrong with a schema."""


def translate_grammar(grammar: Grammar, field: str = "response_format") -> WorkerGrammar:
    """In the library's words. Raises `InvalidRequestError`, which names `field`, for what is not certain to compile."""
    if grammar.kind in ("regex", "grammar"):
        raise refuse(
            _NAME,
            "structured_outputs",
            f"a {grammar.kind} that does not compile would fail every request that runs; send choices, or a JSON "
            "Schema of plain keywords",
        )
    kind, source = schema_or_regex(grammar)
    if grammar.kind == "choice":
        choices: list[str] = msgspec.json.decode(grammar.source, type=list[str])
        if sum(map(len, choices)) > MAX_CHOICE_CHARS or not all(choices):
            raise refuse(
                _NAME, field, f"choices must not be empty, and have at most {MAX_CHOICE_CHARS} characters together"
            )
        return WorkerGrammar(kind, source)
    try:
        _check(msgspec.json.decode(source), 0, [0])
    except _NotCertain as error:
        raise refuse(_NAME, field, str(error)) from error
    return WorkerGrammar(kind, source)


def _check(schema: Any, depth: int, count: list[int]) -> None:
    """`count[0]` is the number of schemas so far. Raises `_NotCertain`."""
    count[0] += 1
    if depth > MAX_DEPTH or count[0] > MAX_SCHEMAS:
        raise _NotCertain(f"the schema is nested more than {MAX_DEPTH} deep, or has more than {MAX_SCHEMAS} parts")
    if schema is True:
        return
    if not isinstance(schema, dict):
        raise _NotCertain("every part of a schema must be an object or true")
    for name in schema:
        if name not in _KEYWORDS:
            raise _NotCertain(f"the keyword {name!r} is not among those that its compiler surely takes")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            raise _NotCertain(f"{kind!r} is no type of JSON Schema")
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list) or not set(required) <= set(properties):
        raise _NotCertain("`properties` must be an object that has every name in the list `required`")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        raise _NotCertain("`enum` must be a list that is not empty")
    if "anyOf" in schema and not (isinstance(schema["anyOf"], list) and schema["anyOf"]):
        raise _NotCertain("`anyOf` must be a list that is not empty")
    more = schema.get("additionalProperties", True)
    parts = [*properties.values(), *schema.get("anyOf", ())]
    parts += [] if isinstance(more, bool) else [more]
    parts += [schema["items"]] if "items" in schema else []
    for part in parts:
        _check(part, depth + 1, count)
