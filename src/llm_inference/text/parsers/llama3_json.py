"""Calls as `{"name": …, "parameters": {…}}`, several separated by `;`, maybe after `<|python_tag|>`: Llama 3.1 and 3.2.

Without the tag, only an object at the very beginning of the output (or right after another call) can be a call, and
only if its name is one of the request's tools: an answer that happens to be a JSON object stays text. Separators behind
the last call are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from llm_inference.text.parsers.base import new_call_id
from llm_inference.text.parsers.json_scanner import WHITESPACE
from llm_inference.text.parsers.tool_parser import ToolParser

PYTHON_TAG = "<|python_tag|>"


class Llama3JsonParser(ToolParser):
    _markers = (PYTHON_TAG,)

    def __init__(
        self,
        tool_names: Collection[str] = (),
        *,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        super().__init__(tool_names, parallel=parallel, new_id=new_id)
        self._state = self._at_start
        self._is_between = False

    def _enter(self, marker: str) -> None:
        self._held = marker
        self._state = self._at_start

    def _after_call(self) -> None:
        self._is_between = True
        self._state = self._at_start

    def _end(self) -> None:
        if self._is_between:
            self._held = ""

    def _at_start(self, text: str, pos: int) -> int:
        """Whitespace (and separators behind a call), then a call or plain text. `_held` is the tag or separator."""
        end = pos
        skipped = WHITESPACE + ";" if self._is_between else WHITESPACE
        while end < len(text) and text[end] in skipped:
            end += 1
        if end > pos:
            if self._held or ";" in text[pos:end]:
                self._held += text[pos:end]
            else:
                self._out.content(text[pos:end])
            return end
        prefix, self._held, self._is_between = self._held, "", False
        if text[pos] == "{":
            self._begin_call(prefix, self._known)
        else:
            self._out.content(prefix)
            self._state = self._in_text
        return pos
