"""What is wrong with a value, in a sentence for people: pydantic's errors, translated.

Never shows the value of a secret. Knows the schema's sections, not where the values came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from llm_inference.config.document import KeyPath
from llm_inference.config.names import Section, nearest, unknown_in, unknown_key
from llm_inference.config.schema import ApiConfig, GenerationConfig, ModelConfig, ServerConfig, SpeculationConfig
from llm_inference.config.telemetry import AlertsConfig, TelemetryConfig
from llm_inference.config.tenants import KeyConfig, LimitsConfig, PriceConfig

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
_SECRETS = ("api_key", "api_keys", "key", "key_hash", "key_store", "limits_store", "ledger")
#: Sections that may stand at several places, by the key that they stand under.
_ANYWHERE: dict[str, type[BaseModel]] = {
    "keys": KeyConfig,
    "limits": LimitsConfig,
    "key_limits": LimitsConfig,
    "address_limits": LimitsConfig,
    "price": PriceConfig,
    "speculation": SpeculationConfig,
    "telemetry": TelemetryConfig,
    "alerts": AlertsConfig,
}


def known_fields() -> dict[Section, tuple[str, ...]]:
    """The keys of every section; "" is the top level, where one model's keys may stand too."""
    model = tuple(ModelConfig.model_fields)
    return {
        "": (*ServerConfig.model_fields, *model),
        "api": tuple(ApiConfig.model_fields),
        "model": model,
        "generation": tuple(GenerationConfig.model_fields),
    }


def explain(error: ErrorDetails, value: Any, *, short_form: bool, hide_value: bool = False) -> str:
    """One sentence for `error`; `value` is what stood there. `short_form`: the model's keys are at the top level."""
    kind, path = error["type"], error["loc"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == "extra_forbidden":
        # The innermost: what stands under `limits` of an entry of `keys` is no key of that entry.
        inner = next((_ANYWHERE[part] for part in path[-2:-4:-1] if part in _ANYWHERE), None)
        if inner is not None:
            return unknown_in(str(path[-1]), tuple(inner.model_fields))
        return unknown_key(str(path[-1]), _section(path, short_form), known_fields())
    if kind == "value_error":
        return str(context["error"])
    shown = "" if hide_value or any(part in _SECRETS for part in path) else f", not {_show(value)}"
    if kind in _EXPECTED:
        hint = ""
        if isinstance(value, str) and kind == "bool_type":
            hint = f" (write {'false' if value.lower() in ('no', 'off', 'n', 'false', '0') else 'true'} without quotes)"
        elif isinstance(value, str) and kind in ("int_type", "float_type") and value.strip("+-").isdecimal():
            hint = " (write it without quotes)"
        elif kind == "string_type" and isinstance(value, (bool, int, float)):
            hint = " (put it in quotes)"
        return f"must be {_EXPECTED[kind]}{shown}{hint}"
    if kind == "literal_error" or kind == "enum":
        close = nearest(value, _choices(context)) if isinstance(value, str) else None
        return f"must be {context['expected']}{shown}" + (f'; did you mean "{close}"?' if close else "")
    if kind in ("string_too_short", "too_short"):
        return "must not be empty"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}{shown}"
    if kind == "missing":
        return "is missing"
    return error["msg"].replace("Input should be", "must be") + shown


def _section(path: KeyPath, short_form: bool) -> Section:
    """The section whose keys were to be known at `path[-1]`."""
    parent = path[:-1]
    if not parent or (short_form and len(parent) == 2 and parent[0] == "models"):
        return ""
    if parent[0] == "api":
        return "api"
    return "generation" if parent[-1] == "generation" else "model"


def _choices(context: Mapping[str, Any]) -> list[str]:
    return [part.strip(" '") for part in str(context["expected"]).replace(" or ", ", ").split(",")]


def _show(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
