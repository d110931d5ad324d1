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
    ("[mail]", re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")),
    ("[iban]", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b")),
    # Cards, phones, identity numbers: nine digits or more, however they are grouped.
    ("[number]", re.compile(r"(?<![\w.])\+?\d(?:[ ().-]{0,2}\d){8,18}(?![\w])")),
)
_MAX_DEPTH = 16


def redact(value: Any, depth: int = 0) -> Any:
    """A copy of a prompt (text, token ids, messages) in which every text is redacted; ids stay as they are."""
    if isinstance(value, str):
        for word, shape in _SHAPES:
            value = shape.sub(word, value)
        return value
    if depth >= _MAX_DEPTH:
        return "[deep]"
    if isinstance(value, Mapping):
        return {key: redact(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item, depth + 1) for item in value]
    return value
