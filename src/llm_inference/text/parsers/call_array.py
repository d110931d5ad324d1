"""A parser of formats that write calls as a JSON array of objects: `[{"name": …, "arguments": {…}}, …]`.

Holds the state between the objects. Where the text ends behind a whole call, a separator that came after it is dropped.
"""

from __future__ import annotations

from llm_inference.text.parsers.json_scanner import WHITESPACE
from llm_inference.text.parsers.tool_parser import ToolParser


class CallArrayParser(ToolParser):
    """Subclasses call `_begin_array_or_call` at `[` or `{`."""

    #: Behind the `[` of an array of calls and before its `]`.
    _in_array = False

    def _accepts(self, name: str) -> bool:
        return self._known(name)

    def _begin_array_or_call(self, text: str, pos: int) -> int:
        """`text[pos]` is `[` or `{`, `_held` the syntax before it."""
        prefix, self._held = self._held, ""
        self._in_array = text[pos] == "["
        self._begin_call(prefix + "[" if self._in_array else prefix, self._accepts)
        return pos + self._in_array

    def _after_call(self) -> None:
        self._state = self._between if self._in_array else self._in_text

    def _end(self) -> None:
        if self._state == self._between:
            self._held = ""

    def _between(self, text: str, pos: int) -> int:
        """After a call in an array: `,` and another, or the end. What comes is held."""
        char = text[pos]
        has_comma = "," in self._held
        if char == "]" and not has_comma:
            self._held = ""
            self._in_array = False
            self._state = self._in_text
        elif char in WHITESPACE or (char == "," and not has_comma):
            self._held += char
        elif char == "{" and has_comma:
            self._begin_call(self._held, self._accepts)
            self._held = ""
            return pos
        else:
            return self._give_up(pos)
        return pos + 1

    def _give_up(self, pos: int) -> int:
        """What is held was no syntax: text."""
        held, self._held = self._held, ""
        self._in_array = False
        self._out.content(held)
        self._state = self._in_text
        return pos
