"""From the API's `Grammar` to the text that the grammar library compiles, with every limit that can be checked early.

Schemas are read as JSON here (the library would splice broken JSON into its own), measured, and given a fixed, bounded
whitespace: a small model that may write any amount of blanks between two tokens of JSON never comes to the end.
Knows nothing of tokens and holds no state.
"""

from __future__ import annotations

import json
from typing import Any, Final

from llguidance import LLMatcher

from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError

#: The request field to blame where the caller names none.
FIELDS: Final = {
    "json_object": "response_format",
    "json_schema": "response_format.json_schema.schema",
    "regex": "structured_outputs.regex",
    "choice": "structured_outputs.choice",
    "grammar": "structured_outputs.grammar",
}

MAX_SOURCE_BYTES: Final = 256 * 1024
MAX_SCHEMA_DEPTH: Final = 64
MAX_CHOICES: Final = 4096

#: Between two tokens of JSON: nothing, one space, or a line break with indentation.
_WHITESPACE: Final = r" |\n[ \t]{0,32}"
_SCHEMA_OPTIONS: Final = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE, "lenient": False}


def to_library_grammar(grammar: Grammar, param: str) -> str:
    """The library's own JSON form. Raises `InvalidRequestError` for what can be seen without compiling."""
    size = len(grammar.source.encode(errors="surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise invalid(param, f"has {size} bytes; the limit is {MAX_SOURCE_BYTES}")
    if any("\ud800" <= char <= "\udfff" for char in grammar.source):
        raise invalid(param, "holds half of a surrogate pair, which no text can match")
    if grammar.kind == "json_object":
        return _from_schema({"type": "object"})
    if grammar.kind == "json_schema":
        return _from_schema(_read_schema(grammar.source, param))
    if grammar.kind == "regex":
        return str(LLMatcher.grammar_from_regex(grammar.source))
    if grammar.kind == "choice":
        return str(LLMatcher.grammar_from_lark(_choices_to_lark(grammar.source, param)))
    return str(LLMatcher.grammar_from_lark(grammar.source))


def invalid(param: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {reason}.", param=param)


def _from_schema(schema: dict[str, Any]) -> str:
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_SCHEMA_OPTIONS))


def _read_schema(source: str, param: str) -> dict[str, Any]:
    schema = _read_json(source, param)
    if not isinstance(schema, dict):
        raise invalid(param, "a JSON Schema must be an object")
    level: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return schema
    raise invalid(param, f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")


def _choices_to_lark(source: str, param: str) -> str:
    choices = _read_json(source, param)
    if not isinstance(choices, list) or not choices or not all(isinstance(item, str) and item for item in choices):
        raise invalid(param, "must be a list of at least one text, none of them empty")
    if len(choices) > MAX_CHOICES:
        raise invalid(param, f"has {len(choices)} choices; the limit is {MAX_CHOICES}")
    if any("\ud800" <= char <= "\udfff" for item in choices for char in item):
        raise invalid(param, "holds half of a surrogate pair, which no text can match")
    # One terminal, not alternatives of a rule: a choice that begins another one is then no ambiguity.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(item, ensure_ascii=False) for item in choices) + "\n"


def _read_json(source: str, param: str) -> Any:
    def refuse(constant: str) -> Any:
        raise invalid(param, f"is not JSON: {constant} has no place in it")

    try:
        return json.loads(source, parse_constant=refuse)
    except RecursionError as exc:
        raise invalid(param, f"is nested deeper than {MAX_SCHEMA_DEPTH} levels") from exc
    except ValueError as exc:
        raise invalid(param, f"is not JSON: {exc}") from exc
