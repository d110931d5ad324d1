"""Hides what is likely to be private in text that is about to be logged: addresses, secrets, long numbers.

By shape alone, so it errs on both sides: a name or a street stays, a long serial number goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: In this order: what one has replaced no later one sees.
_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("[data]", re.compile(r"data:[\w./+-]{1,100};base64,[A-Za-z0-9+/=]+")),
    ("[token]", re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]{4,}")),  # JSON Web Tokens
    ("[secret]", re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|hf|AKIA|AIza)[-_]?[\w-]{12,}")),
    ("[secret]", re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}")),
    ("[secret]", re.compile(r"(?i)(?<=\bpassword[:=])\s*\S+|(?<=\bpassword is )\S+")),
    ("[mail]", re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")),
    ("[iban]", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b")),
    # Cards, phones, identity numbers: nine digits or more, however they are grouped.
    ("[number]", re.compile(r"(?<![\w.])\+?\d(?:[ ().-]{0,2}\d){8,18}(?![\w])")),
)
_MAX_DEPTH = 16
#: Where nothing longer than this is a word, a text has no place to be cut at.
_MAX_WORD = 2_048
#: Of all texts of a prompt together, and of all its lists: a line of the log is read by people, and is written while
#: others wait.
MAX_CHARS = 32_768
MAX_ITEMS = 4_096


def redact(value: Any) -> Any:
    """A copy of a prompt (text, token ids, messages) in which every text is redacted; ids stay as they are.

    What is beyond `MAX_CHARS` or `MAX_ITEMS` is said by its length alone. Takes some milliseconds at the worst.
    """
    return _Redaction().of(value, 0)


class _Redaction:
    """Of one prompt: how many characters, and entries of lists, may still be shown."""

    def __init__(self) -> None:
        self._left = MAX_CHARS
        self._items_left = MAX_ITEMS

    def of(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if depth >= _MAX_DEPTH:
            return "[deep]"
        if isinstance(value, Mapping):
            return {key: self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            count = min(len(value), self._items_left)
            self._items_left -= count
            shown = [self.of(item, depth + 1) for item in value[:count]]
            return shown if len(value) == count else [*shown, f"[{len(value) - count} more]"]
        return value

    def _text(self, text: str) -> str:
        kept = text
        if len(text) > self._left:
            # Up to the last whole word that is no number: half a secret has no shape that would be known.
            end = re.sub(r"\S*\Z", "", text[: self._left][-_MAX_WORD:]).rstrip("0123456789 ().+-")
            kept = text[: max(self._left - _MAX_WORD, 0)] + end if end else ""
        self._left -= len(kept)
        hidden = len(text) - len(kept)
        for word, shape in _SHAPES:
            kept = shape.sub(word, kept)
        return f"{kept} [{hidden} characters]".lstrip() if hidden else kept
