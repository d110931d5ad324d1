"""A JSON schema of the config file, for editors: completion, hover texts and red underlines while typing.

Made from the pydantic models, so that it cannot say anything else; what a schema cannot express (names that must
differ, `precision` against `dtype`) is left to loading.
"""

from __future__ import annotations

from typing import Any

from llm_inference.config.schema import ModelConfig, ServerConfig

#: A value from the environment may stand where the schema wants a number or a boolean.
_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}


def json_schema() -> dict[str, Any]:
    """The schema of both forms: `models:`, or one model's keys at the top level beside `api:`."""
    schema = ServerConfig.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    short_form = definitions[ModelConfig.__name__]["properties"]
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "llm-inference configuration",
        "description": "One service and its models. With one model, its keys may stand at the top level.",
        "type": "object",
        "additionalProperties": False,
        "properties": {"$schema": {"type": "string"}, **schema["properties"], **short_form},
        # `models` and a single model's keys exclude each other.
        "if": {"required": ["models"]},
        "then": {"properties": dict.fromkeys(short_form, False)},
        "$defs": definitions,
    }
    return {key: _with_variables(value) if key in ("properties", "$defs") else value for key, value in whole.items()}


def _with_variables(node: Any) -> Any:
    """The same schema, in which numbers and booleans may also be `${VAR}`; without titles that repeat the key."""
    if isinstance(node, list):
        return [_with_variables(item) for item in node]
    if not isinstance(node, dict):
        return node
    result = {key: _with_variables(value) for key, value in node.items() if not _is_title(key, value)}
    # Strict models print the defaults of a whole section; hovering over one key should show that key's alone.
    if isinstance(result.get("default"), (dict, list)) and result["default"] and "$ref" in str(result):
        del result["default"]
    if result.get("default") == "":  # filled from another key
        del result["default"]
    if result.get("type") in ("integer", "number", "boolean"):
        outer = {key: result.pop(key) for key in ("default", "description") if key in result}
        return {**outer, "anyOf": [result, _VARIABLE]}
    return result


def _is_title(key: str, value: Any) -> bool:
    return key == "title" and isinstance(value, str)
