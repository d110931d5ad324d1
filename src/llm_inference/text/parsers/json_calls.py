"""The whole output is a JSON array of call objects, or one such object: what a grammar can force on any model.

Objects that name no tool of the request, and text around, stay text: a model that is not forced may answer in prose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from llm_inference.text.parsers.base import new_call_id
from llm_inference.text.parsers.call_array import CallArrayParser
from llm_inference.text.parsers.json_scanner import WHITESPACE


class JsonCallsParser(CallArrayParser):
    def __init__(
        self,
        tool_names: Collection[str] = (),
        *,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        super().__init__(tool_names, parallel=parallel, new_id=new_id)
        self._state = self._at_start

    def _at_start(self, text: str, pos: int) -> int:
        char = text[pos]
        if char in WHITESPACE:
            self._out.content(char)
            return pos + 1
        if char in "[{":
            return self._begin_array_or_call(text, pos)
        self._state = self._in_text
        return pos
