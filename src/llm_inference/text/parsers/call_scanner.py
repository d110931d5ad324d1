"""Recognises one call written as a JSON object: `{"name": "f", "arguments": {…}}`.

The arguments go to the collector as raw JSON text while they arrive. The call is announced when its name is known and
its arguments have begun (or the object has ended without any); before that nothing is sent, so that a broken call can
still become text.

    {"name": "f", "arguments": {"city": "Par      ← streamed
    └─ held as raw text ─────┘└─ sent ──────

Accepted: keys in any order, further keys (`id`, `type`: skipped), `arguments` as an object, as a JSON string that holds
an object (unwrapped), null or absent (`{}`). Anything else fails. Knows nothing of the markers around the object.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from llm_inference.text.parsers.base import Collector
from llm_inference.text.parsers.json_scanner import WHITESPACE, JsonScanner

_OPEN, _KEY_OR_END, _KEY, _COLON, _VALUE, _COMMA_OR_END = range(6)
_ARGUMENT_KEYS = ("arguments", "parameters")


class CallScanner:
    """`feed` until `done` or `failed`; then, if failed, `unsent` is what must become text."""

    __slots__ = (
        "_accepts", "_announced", "_key", "_name", "_out", "_pending", "_pieces", "_raw", "_scanner", "_seen", "_state",
        "_streaming", "done", "failed",
    )  # fmt: skip

    def __init__(self, out: Collector, accepts_name: Callable[[str], bool], prefix: str = "") -> None:
        """`prefix` is syntax already consumed before the object: part of the text if the call fails unannounced."""
        self.done = False
        self.failed = False
        self._out = out
        self._accepts = accepts_name
        self._raw: list[str] = [prefix]
        self._state = _OPEN
        self._key = ""
        self._seen: set[str] = set()
        self._name: str | None = None
        #: Whole arguments that came before the name.
        self._pending: str | None = None
        self._announced = False
        #: The value that runs now is an arguments object whose call is announced.
        self._streaming = False
        self._scanner: JsonScanner | None = None
        self._pieces: list[str] = []

    @property
    def unsent(self) -> str:
        """Consumed text that was given out neither as a name nor as arguments."""
        return "".join(self._raw)

    def feed(self, text: str, pos: int) -> int:
        """Consume `text[pos:]` as far as the call goes; returns where it stopped."""
        size = len(text)
        while pos < size and not self.done and not self.failed:
            if self._scanner is not None:
                pos = self._feed_value(self._scanner, text, pos)
                continue
            char = text[pos]
            if char not in WHITESPACE and not self._structure(char):
                continue  # nothing consumed: failed, or a value begins here
            self._raw.append(char)
            pos += 1
        return pos

    def finish(self) -> None:
        """The text ended inside the call: send what has come."""
        if self._streaming and self._scanner is not None:
            self._out.arguments(self._scanner.held)
        elif not self._announced:
            self._out.content(self.unsent)

    def _structure(self, char: str) -> bool:
        state = self._state
        if state == _OPEN and char == "{":
            self._state = _KEY_OR_END
        elif state in (_KEY, _KEY_OR_END) and char == '"':
            self._begin_value(_KEY)
            return False
        elif state == _COLON and char == ":":
            self._state = _VALUE
        elif state == _VALUE:
            self._streaming = char == "{" and self._key == "arguments" and self._name is not None
            if self._streaming:
                self._announce()
            self._begin_value(_VALUE)
            return False
        elif state == _COMMA_OR_END and char == ",":
            self._state = _KEY
        elif state == _COMMA_OR_END and char == "}":
            if self._name is None:
                self.failed = True
                return False
            if not self._announced:
                self._announce()
                self._out.arguments(self._pending or "{}")
            self._out.end_call()
            self.done = True
        else:
            self.failed = True
            return False
        return True

    def _begin_value(self, state: int) -> None:
        self._state = state
        self._scanner = JsonScanner()
        self._pieces = []

    def _feed_value(self, scanner: JsonScanner, text: str, pos: int) -> int:
        start = pos
        pos, piece = scanner.feed(text, pos)
        if self._streaming:
            self._out.arguments(piece)
            if scanner.failed:
                self._raw = [scanner.held]
        else:
            self._raw.append(text[start:pos])
            self._pieces.append(piece)
        self.failed = scanner.failed
        if scanner.done:
            self._scanner = None
            self._end_value("".join(self._pieces))
        return pos

    def _end_value(self, value: str) -> None:
        if self._state == _KEY:
            key = json.loads(value)
            self._key = "arguments" if key in _ARGUMENT_KEYS else key
            self.failed = self._key in self._seen
            self._seen.add(self._key)
            self._state = _COLON
            return
        self._state = _COMMA_OR_END
        if self._streaming:
            self._streaming = False
        elif self._key == "name":
            name = json.loads(value) if value.startswith('"') else ""
            self.failed = not name or not is_encodable(name) or not self._accepts(name)
            self._name = name
        elif self._key == "arguments":
            arguments = _as_object(value)
            self.failed = arguments is None
            self._pending = arguments
        if self._name is not None and self._pending is not None and not self._announced and not self.failed:
            self._announce()
            self._out.arguments(self._pending)

    def _announce(self) -> None:
        assert self._name is not None
        self._out.start_call(self._name)
        self._announced = True
        self._raw = []


def _as_object(value: str) -> str | None:
    """Arguments as the JSON text of an object, or None if they are not one."""
    if value.startswith("{"):
        return value
    if value == "null":
        return "{}"
    if value.startswith('"'):
        inner = json.loads(value).strip(WHITESPACE)
        scanner = JsonScanner()
        end, normalised = scanner.feed(inner)
        if inner.startswith("{") and scanner.done and end == len(inner) and is_encodable(inner):
            return normalised
    return None


def is_encodable(text: str) -> bool:
    """False where an escape left half of a surrogate pair: no reply could carry it."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
