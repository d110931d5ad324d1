"""Calls as a Python list of calls: `[get_weather(city="Paris"), get_time(zone='UTC')]`, as Llama 3.2 and 4 write them.

Nothing is evaluated: arguments are keywords with literal values, each converted to JSON and sent once it is whole.
Without `<|python_start|>`, only a list at the very beginning of the output counts, and only of the request's tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from llm_inference.text.parsers.base import new_call_id
from llm_inference.text.parsers.json_scanner import WHITESPACE
from llm_inference.text.parsers.python_literal import LiteralScanner, to_json
from llm_inference.text.parsers.tool_parser import ToolParser

START, END = "<|python_start|>", "<|python_end|>"
_MAX_NAME_CHARS = 256


class PythonicParser(ToolParser):
    _markers = (START,)

    def __init__(
        self,
        tool_names: Collection[str] = (),
        *,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        super().__init__(tool_names, parallel=parallel, new_id=new_id)
        self._state = self._at_start
        self._raw: list[str] = []  # consumed since the last thing sent
        self._word = ""  # the function's name or the keyword, as far as read
        self._name = ""
        self._announced = False
        self._keys: set[str] = set()
        self._value = LiteralScanner()

    def _enter(self, marker: str) -> None:
        self._held = marker
        self._state = self._at_start

    def _end(self) -> None:
        raw = "".join(self._raw)
        if self._state in (self._in_name, self._in_value) or (self._state == self._in_key and not self._announced):
            # A half argument is no JSON yet: behind a call that was announced it is dropped with its comma.
            if not (self._announced and self._state == self._in_value) and raw.strip(WHITESPACE + ","):
                self._out.content(raw)
            self._raw = []

    def _at_start(self, text: str, pos: int) -> int:
        """Whitespace, then a list or plain text. `_held` may be the marker before it."""
        char = text[pos]
        if char in WHITESPACE:
            if self._held:
                self._held += char
            else:
                self._out.content(char)
            return pos + 1
        if char == "[":
            self._raw = [self._held, char]
            self._held = ""
            self._announced = False
            self._word = ""
            self._state = self._in_name
            return pos + 1
        held, self._held = self._held, ""
        self._out.content(held)
        self._state = self._in_text
        return pos

    def _in_name(self, text: str, pos: int) -> int:
        char = text[pos]
        if char == "(" and self._word and self._known(self._word.rstrip()):
            self._name = self._word.rstrip()
            self._word = ""
            self._announced = False
            self._keys = set()
            self._state = self._in_key
        elif not self._extend_word(char):
            return self._give_up(pos)
        self._raw.append(char)
        return pos + 1

    def _in_key(self, text: str, pos: int) -> int:
        """A keyword up to its `=`, or the end of the call (also behind a trailing comma)."""
        char = text[pos]
        if char == ")" and not self._word:
            self._announce()
            self._out.arguments("}" if self._keys else "{}")
            self._out.end_call()
            self._raw = []
            self._state = self._between
            return pos + 1
        key = self._word.rstrip()
        if char == "=" and key and key not in self._keys:
            self._value = LiteralScanner()
            self._state = self._in_value
        elif not self._extend_word(char):
            return self._give_up(pos)
        self._raw.append(char)
        return pos + 1

    def _in_value(self, text: str, pos: int) -> int:
        start = pos
        pos = self._value.feed(text, pos)
        self._raw.append(text[start:pos])
        if self._value.failed:
            return self._give_up(pos)
        if not self._value.done:
            return pos
        if text[pos] not in ",)":
            return self._give_up(pos)
        try:
            value = to_json(self._value.text)
        except ValueError:
            return self._give_up(pos)
        self._announce()
        key = self._word.rstrip()
        self._out.arguments(f"{', ' if self._keys else '{'}{json.dumps(key)}: {value}")
        self._keys.add(key)
        self._word = ""
        self._state = self._in_key
        if text[pos] == ",":
            self._raw = [","]
            return pos + 1
        self._raw = []
        return pos

    def _between(self, text: str, pos: int) -> int:
        """After a call: another, or the end of the list."""
        char = text[pos]
        if char == "]":
            self._raw = []
            self._state = self._in_end
            return pos + 1
        if char == ",":
            self._word = ""
            self._state = self._in_name
        elif char not in WHITESPACE:
            return self._give_up(pos)
        self._raw.append(char)
        return pos + 1

    def _in_end(self, text: str, pos: int) -> int:
        return self._skip_optional(END, text, pos)

    def _extend_word(self, char: str) -> bool:
        """Take a character of an identifier (dots allowed) with whitespace around. False if it cannot be one."""
        if char in WHITESPACE:
            if self._word and len(self._word) < _MAX_NAME_CHARS:
                self._word += char
            return len(self._word) < _MAX_NAME_CHARS
        is_first = not self._word
        is_after_space = not is_first and self._word[-1] in WHITESPACE
        if is_after_space or len(self._word) >= _MAX_NAME_CHARS or not char.isascii():
            return False
        if not (char.isalpha() or char == "_" or (not is_first and (char.isdigit() or char in ".-"))):
            return False
        self._word += char
        return True

    def _announce(self) -> None:
        if not self._announced:
            self._out.start_call(self._name)
            self._announced = True

    def _give_up(self, pos: int) -> int:
        """What was read since the last thing sent was no syntax: text."""
        self._out.content("".join(self._raw))
        self._raw = []
        self._state = self._in_text
        return pos
