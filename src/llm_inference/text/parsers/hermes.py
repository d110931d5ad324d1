"""Calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3 and who learnt from them.

A missing end marker is forgiven. The name is taken as it comes: the marker says that a call is meant.
"""

from __future__ import annotations

from llm_inference.text.parsers.tool_parser import ToolParser

START, END = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    _markers = (START,)

    def _enter(self, marker: str) -> None:
        self._begin_call(marker, lambda name: True)

    def _after_call(self) -> None:
        self._state = self._in_end

    def _in_end(self, text: str, pos: int) -> int:
        return self._skip_optional(END, text, pos)
