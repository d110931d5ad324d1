"""Python literals to JSON text, without evaluating anything: strings, numbers, True/False/None, lists, tuples, dicts.

`LiteralScanner` finds where a literal ends as it arrives; `to_json` converts a whole one. Also understood, since models
mix the two languages: true, false, null. Knows nothing of calls.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_MAX_DEPTH = 64
_OUTSIDE = re.compile(r"[^\"'\[\](){},]+")
_INSIDE = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_SPACES = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![A-Za-z0-9_.])")
_QUOTED = re.compile(
    r'"""((?:[^\\]|\\.)*?)"""|'
    r"'''((?:[^\\]|\\.)*?)'''|"
    r'"((?:[^"\\]|\\.)*)"|'
    r"'((?:[^'\\]|\\.)*)'",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_SIMPLE = {"\n": "", "\\": "\\", "'": "'", '"': '"'}
_SIMPLE |= {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


class LiteralScanner:
    """`feed` until `done` (a `,` or closing bracket outside follows) or `failed` (brackets do not match)."""

    __slots__ = ("_backslash", "_pieces", "_quote", "_quote_run", "_stack", "done", "failed")

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._pieces: list[str] = []
        self._stack: list[str] = []
        self._quote = ""  # the quotes that end the string we are in
        self._quote_run = ""  # quotes seen in a row that may still become other quotes
        self._backslash = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def feed(self, text: str, pos: int) -> int:
        """Consume `text[pos:]` as far as the literal goes; returns where it stopped."""
        size = len(text)
        while pos < size and not self.done and not self.failed:
            end = self._inside(text, pos) if self._quote else self._outside(text, pos)
            self._pieces.append(text[pos:end])
            pos = end
        return pos

    def _outside(self, text: str, pos: int) -> int:
        char = text[pos]
        if self._quote_run:  # one or two quotes: does a third follow, or was it a string already?
            if char == self._quote_run[0]:
                self._quote_run += char
                if len(self._quote_run) == 3:
                    self._quote, self._quote_run = self._quote_run, ""
                return pos + 1
            if len(self._quote_run) == 1:
                self._quote, self._quote_run = self._quote_run, ""
                return pos
            self._quote_run = ""  # the empty string
        if (plain := _OUTSIDE.match(text, pos)) is not None:
            return plain.end()
        if char in "\"'":
            self._quote_run = char
        elif char in _CLOSING:
            self._stack.append(_CLOSING[char])
            self.failed = len(self._stack) > _MAX_DEPTH
        elif not self._stack:
            self.done = True
            return pos
        elif char != ",":
            self.failed = char != self._stack.pop()
        return pos + 1

    def _inside(self, text: str, pos: int) -> int:
        char = text[pos]
        if self._backslash:
            self._backslash = False
            return pos + 1
        if char == self._quote[0]:
            self._quote_run += char
            if self._quote_run == self._quote:
                self._quote = self._quote_run = ""
            return pos + 1
        self._quote_run = ""
        if char == "\\":
            self._backslash = True
            return pos + 1
        body = _INSIDE[self._quote[0]].match(text, pos)
        assert body is not None  # neither quote nor backslash
        return body.end()


def to_json(text: str) -> str:
    """JSON text of one Python literal. Raises `ValueError` for anything that is not one or has no JSON form."""
    value, pos = _value(text, _skip(text, 0), 0)
    if _skip(text, pos) != len(text):
        raise ValueError("more than one literal")
    encoded = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        encoded.encode()
    except UnicodeEncodeError:  # half a surrogate pair: only the escaped form can travel
        return json.dumps(value, allow_nan=False)
    return encoded


def _skip(text: str, pos: int) -> int:
    spaces = _SPACES.match(text, pos)
    assert spaces is not None  # the pattern matches nothing, too
    return spaces.end()


def _value(text: str, pos: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    char = text[pos : pos + 1]
    if char in ("[", "("):
        return _list(text, pos, depth)
    if char == "{":
        return _dict(text, pos, depth)
    if (quoted := _QUOTED.match(text, pos)) is not None:
        body = next(group for group in quoted.groups() if group is not None)
        return _ESCAPE.sub(_unescape, body), quoted.end()
    if (word := _WORD.match(text, pos)) is not None and word.group() in _CONSTANTS:
        return _CONSTANTS[word.group()], word.end()
    if (number := _NUMBER.match(text, pos)) is not None:
        return _number(number.group()), number.end()
    raise ValueError("not a literal")


def _number(text: str) -> int | float:
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("out of range")
    return value


def _list(text: str, pos: int, depth: int) -> tuple[Any, int]:
    """A list or a tuple; `(x)` is x."""
    closing = _CLOSING[text[pos]]
    items: list[Any] = []
    has_comma = False
    pos = _skip(text, pos + 1)
    while text[pos : pos + 1] != closing:
        item, pos = _value(text, pos, depth + 1)
        items.append(item)
        pos = _skip(text, pos)
        if text[pos : pos + 1] == ",":
            has_comma = True
            pos = _skip(text, pos + 1)
        elif text[pos : pos + 1] != closing:
            raise ValueError("a list that does not end")
    if closing == ")" and len(items) == 1 and not has_comma:
        return items[0], pos + 1
    return items, pos + 1


def _dict(text: str, pos: int, depth: int) -> tuple[Any, int]:
    result: dict[str, Any] = {}
    pos = _skip(text, pos + 1)
    while text[pos : pos + 1] != "}":
        key, pos = _value(text, pos, depth + 1)
        pos = _skip(text, pos)
        if not isinstance(key, str) or text[pos : pos + 1] != ":":
            raise ValueError("a dict whose keys are not strings")
        result[key], pos = _value(text, _skip(text, pos + 1), depth + 1)
        pos = _skip(text, pos)
        if text[pos : pos + 1] == ",":
            pos = _skip(text, pos + 1)
        elif text[pos : pos + 1] != "}":
            raise ValueError("a dict that does not end")
    return result, pos + 1


def _unescape(match: re.Match[str]) -> str:
    escape = match.group(1)
    if escape[0] in "xuU" and len(escape) > 1:
        code = int(escape[1:], 16)
    elif escape[0] in "01234567":
        code = int(escape, 8)
    else:
        return _SIMPLE.get(escape, match.group())  # as Python does: an unknown escape stays
    if code > 0x10FFFF:
        raise ValueError("no such character")
    return chr(code)
