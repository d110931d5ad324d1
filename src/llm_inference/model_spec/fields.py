"""Typed reading of a model's JSON files: every wrong type is an error that names the file and the key."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_inference.errors import SourceError


@dataclass(frozen=True, slots=True)
class JsonFields:
    """A JSON object and where it came from. `None` in the file counts as absent, as transformers writes it."""

    path: Path
    content: dict[str, Any]
    prefix: str = ""

    @classmethod
    def read(cls, path: Path) -> JsonFields:
        """Raises `SourceError` if the file is absent, unreadable, no JSON or no object."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise SourceError(f"{path} is missing; the directory is no complete model") from error
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: not UTF-8 text; fetch it again") from error
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        if text.startswith("version https://git-lfs"):
            raise SourceError(f"{path}: a Git LFS pointer, not the file itself; run `git lfs pull`")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path}: not valid JSON: {error}; fetch it again") from error
        if not isinstance(content, dict):
            raise SourceError(f"{path}: must hold a JSON object, not {type(content).__name__}")
        return cls(path, content)

    def has(self, key: str) -> bool:
        return self.content.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; required when there is no default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        if value < minimum:
            raise self._wrong(key, f"at least {minimum}", value)
        return value

    def optional_integer(self, key: str, *, minimum: int = 1) -> int | None:
        return self.integer(key, minimum=minimum) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; required when there is no default."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._wrong(key, "a finite number", value)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def boolean(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; absent is empty."""
        value = self._value(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts", value)
        return tuple(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id or a list of ids; absent is empty."""
        value = self._value(key, [])
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items):
            raise self._wrong(key, "a token id or a list of them", value)
        return tuple(items)

    def section(self, key: str) -> JsonFields | None:
        """A nested object, or None."""
        if not self.has(key):
            return None
        value = self.content[key]
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return JsonFields(self.path, value, f"{self.prefix}{key}.")

    def _value(self, key: str, default: Any) -> Any:
        value = self.content.get(key)
        if value is not None:
            return value
        if default is None:
            raise SourceError(f"{self.path}: the key {self.prefix + key!r} is missing")
        return default

    def _wrong(self, key: str, wanted: str, value: object) -> SourceError:
        return SourceError(f"{self.path}: {self.prefix + key!r} must be {wanted}, not {value!r:.80}")
