"""The effective configuration as YAML that says of each value where it came from.

What it prints is itself a config that loads to the same values, except for secrets: those are masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, SecretStr

from llm_inference.config.document import KeyPath, dotted
from llm_inference.config.load import LoadedConfig

MASK = "**********"
_URL_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^@\s]+@")
_COMMENT_COLUMN = 48


def render_yaml(loaded: LoadedConfig) -> str:
    """One line per value, `key: value  # where from`."""
    lines = []
    for text, path in _lines(loaded.config, (), 0):
        origin = loaded.provenance.get(dotted(path)) if path else None
        lines.append(f"{text:<{_COMMENT_COLUMN}}  # {origin}" if origin is not None else text)
    return "\n".join(lines) + "\n"


def _lines(section: BaseModel, path: KeyPath, indent: int) -> Iterator[tuple[str, KeyPath]]:
    """Lines of YAML, each with the path of its value; () for lines that only open a section."""
    pad = " " * indent
    for name in type(section).model_fields:
        value, here = getattr(section, name), (*path, name)
        if isinstance(value, BaseModel):
            yield f"{pad}{name}:", ()
            yield from _lines(value, here, indent + 2)
        elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
            yield f"{pad}{name}:", ()
            for index, item in enumerate(value):
                nested = _lines(item, (*here, index), indent + 4)
                first, first_path = next(nested)
                yield f"{pad}  - {first.lstrip()}", first_path
                yield from nested
        elif isinstance(value, dict) and value:
            yield f"{pad}{name}:", ()
            for key, item in value.items():
                yield f"{pad}  {_key(str(key))}: {_scalar(item)}", (*here, str(key))
        else:
            yield f"{pad}{name}: {_scalar(value)}", here


def _scalar(value: Any) -> str:
    """`value` in YAML's flow style, which for everything but bare words is JSON."""
    if isinstance(value, SecretStr):
        return _scalar(MASK)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(str(key))}: {_scalar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        value = _URL_PASSWORD.sub(rf"\1{MASK}@", value)
    if isinstance(value, str) and _is_bare_word(value):
        return value
    if isinstance(value, str):
        value = value.replace("${", "$${")
    return json.dumps(value, ensure_ascii=True)


def _key(text: str) -> str:
    """Nothing is filled into a key, so nothing in it is escaped."""
    return text if _is_bare_word(text) else json.dumps(text, ensure_ascii=True)


def _is_bare_word(text: str) -> bool:
    if text.lower() in ("", "true", "false", "null", "~") or not text.isascii():
        return False
    return text[0].isalpha() and all(char.isalnum() or char in "_-./" for char in text)
