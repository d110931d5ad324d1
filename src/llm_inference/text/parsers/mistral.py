"""Mistral's two formats behind `[TOOL_CALLS]`:

    [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]          the older models
    [TOOL_CALLS]f[ARGS]{…}[TOOL_CALLS]g[CALL_ID]x[ARGS]{…}     the newer ones; `[ARGS]` may be missing

Ids are nine letters or digits, since these models' chat templates refuse any other when the client sends it back. A
`[CALL_ID]` that the model writes is read over: nobody promises that it is unique.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from llm_inference.text.parsers.base import short_call_id
from llm_inference.text.parsers.call_array import CallArrayParser
from llm_inference.text.parsers.json_scanner import JsonScanner

MARKER, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.\-]*)\s*")
_HEAD = re.compile(_NAME.pattern + r"(?:\[CALL_ID\]\s*[A-Za-z0-9_\-]*\s*)?(?:\[ARGS\]\s*)?")
_ID = re.compile(r"\s*[A-Za-z0-9_\-]*\s*")
_MAX_HEAD_CHARS = 512


class MistralParser(CallArrayParser):
    _markers = (MARKER,)

    def __init__(
        self,
        tool_names: Collection[str] = (),
        *,
        parallel: bool = True,
        new_id: Callable[[], str] = short_call_id,
    ) -> None:
        super().__init__(tool_names, parallel=parallel, new_id=new_id)
        self._arguments: JsonScanner | None = None

    def _enter(self, marker: str) -> None:
        self._held = marker
        self._state = self._at_head

    def _accepts(self, name: str) -> bool:
        return True  # the marker says that a call is meant

    def _end(self) -> None:
        super()._end()
        if self._arguments is not None:
            self._out.arguments(self._arguments.held)

    def _at_head(self, text: str, pos: int) -> int:
        """Behind the marker: `[`, an object, or a name and what belongs to it. All of it is held."""
        char = text[pos]
        head = self._held[len(MARKER) :]
        blank = not head.strip()
        if char == "{" and not blank and (match := _HEAD.fullmatch(head)) is not None:
            self._held = ""
            self._out.start_call(match.group(1))
            self._arguments = JsonScanner()
            self._state = self._in_arguments
            return pos
        if blank and char in "[{":
            return self._begin_array_or_call(text, pos)
        if not _may_be_head(head + char):
            return self._give_up(pos)
        self._held += char
        return pos + 1

    def _in_arguments(self, text: str, pos: int) -> int:
        assert self._arguments is not None
        pos, piece = self._arguments.feed(text, pos)
        self._out.arguments(piece)
        if self._arguments.failed:
            self._out.content(self._arguments.held)
        elif self._arguments.done:
            self._out.end_call()
        else:
            return pos
        self._arguments = None
        self._state = self._in_text
        return pos


def _may_be_head(head: str) -> bool:
    """Whether more text could make `head` a name with its optional tags. Everything is short: bounded work."""
    if len(head) > _MAX_HEAD_CHARS:
        return False
    if not head.strip():
        return True
    name = _NAME.match(head)
    if name is None:
        return False
    rest = head[name.end() :]
    if rest.startswith(CALL_ID):
        call_id = _ID.match(rest, len(CALL_ID))
        assert call_id is not None  # the pattern matches nothing, too
        rest = rest[call_id.end() :]
        return ARGS.startswith(rest) or not rest.removeprefix(ARGS).strip()
    return CALL_ID.startswith(rest) or ARGS.startswith(rest) or not rest.removeprefix(ARGS).strip()
