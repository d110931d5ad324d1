"""Recognises one JSON value (RFC 8259) as it arrives, and gives its text back piece by piece.

Linear: every character is looked at once, string bodies by a regular expression at C speed, nesting on an explicit
stack. It never gives out a piece that could not be a prefix of valid JSON: numbers, literals and string escapes are
held until they are whole. One normalisation: a raw control character inside a string becomes its escape, since models
write line breaks into strings and a strict reader would refuse them.

Knows nothing of tool calls.
"""

from __future__ import annotations

import re

WHITESPACE = " \t\n\r"

_STRING_BODY = re.compile(r'[^"\\\x00-\x1f]+')
_SPACES = re.compile(r"[ \t\n\r]+")
_SCALAR_BODY = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_ESCAPE_PREFIX = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{0,4})?')
_CONTROL_NAMES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
#: Longest number or literal that is held; longer ones are no longer plausible and count as malformed.
_MAX_SCALAR_CHARS = 4096

# What may come next.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COLON, _COMMA_OR_END, _STRING, _SCALAR_STATE = range(8)


class JsonScanner:
    """`feed` until `done` or `failed`. A scalar at top level is done only when something follows it."""

    __slots__ = ("_is_key", "_stack", "_state", "done", "failed", "held")

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        #: Consumed but not given out: a number, literal or escape in progress.
        self.held = ""
        self._state = _VALUE
        self._is_key = False
        self._stack: list[str] = []

    def feed(self, text: str, pos: int = 0) -> tuple[int, str]:
        """Consume `text[pos:]` as far as the value goes.

        Returns where it stopped (behind the value when `done`, at the offending character when `failed`, else the
        end of `text`), and the piece of JSON text that is certain now.
        """
        out: list[str] = []
        size = len(text)
        while pos < size and not self.done and not self.failed:
            if self._state == _STRING:
                pos = self._string(text, pos, out)
            elif self._state == _SCALAR_STATE:
                pos = self._scalar(text, pos, out)
            elif (space := _SPACES.match(text, pos)) is not None:
                out.append(space.group())
                pos = space.end()
            elif self._structure(text[pos], out):
                pos += 1
        return pos, "".join(out)

    def _string(self, text: str, pos: int, out: list[str]) -> int:
        if self.held:
            return self._escape(text, pos, out)
        if (body := _STRING_BODY.match(text, pos)) is not None:
            out.append(body.group())
            return body.end()
        char = text[pos]
        if char == "\\":
            self.held = char
        elif char == '"':
            out.append(char)
            if self._is_key:
                self._state = _COLON
            else:
                self._end_value()
        else:
            out.append(_CONTROL_NAMES.get(char) or f"\\u{ord(char):04x}")
        return pos + 1

    def _escape(self, text: str, pos: int, out: list[str]) -> int:
        escape = self.held + text[pos]
        if _ESCAPE_PREFIX.fullmatch(escape) is None:
            self.failed = True
            return pos
        self.held = escape
        if len(escape) == (6 if escape[1] == "u" else 2):
            out.append(escape)
            self.held = ""
        return pos + 1

    def _scalar(self, text: str, pos: int, out: list[str]) -> int:
        if (body := _SCALAR_BODY.match(text, pos)) is not None:
            self.held += body.group()
            self.failed = len(self.held) > _MAX_SCALAR_CHARS
            return body.end()
        if _SCALAR.fullmatch(self.held) is None:
            self.failed = True
        else:
            out.append(self.held)
            self.held = ""
            self._end_value()
        return pos

    def _structure(self, char: str, out: list[str]) -> bool:
        """Handle one character outside strings and scalars. True if it was consumed into `out`."""
        state = self._state
        if state in (_VALUE, _VALUE_OR_END):
            if char == '"':
                self._state, self._is_key = _STRING, False
            elif char == "{":
                self._stack.append("}")
                self._state = _KEY_OR_END
            elif char == "[":
                self._stack.append("]")
                self._state = _VALUE_OR_END
            elif char == "]" and state == _VALUE_OR_END:
                self._close()
            elif _SCALAR_BODY.match(char) is not None:
                self._state = _SCALAR_STATE
                return False
            else:
                self.failed = True
        elif state in (_KEY, _KEY_OR_END):
            if char == '"':
                self._state, self._is_key = _STRING, True
            elif char == "}" and state == _KEY_OR_END:
                self._close()
            else:
                self.failed = True
        elif state == _COLON:
            self._state = _VALUE
            self.failed = char != ":"
        elif char == self._stack[-1]:
            self._close()
        elif char == ",":
            self._state = _KEY if self._stack[-1] == "}" else _VALUE
        else:
            self.failed = True
        if self.failed:
            return False
        out.append(char)
        return True

    def _close(self) -> None:
        self._stack.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._state = _COMMA_OR_END
        self.done = not self._stack
