"""What tool parsers share: text until a marker, then a state machine of the format, then text again.

A parser is a set of states: methods that take `(text, pos)`, consume at least one character or change the state, and
return the new position. `_held` is text that a state has consumed and not yet given out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from llm_inference.text.parsers.base import Collector, ParsedText, new_call_id
from llm_inference.text.parsers.call_scanner import CallScanner
from llm_inference.text.parsers.json_scanner import WHITESPACE

State = Callable[[str, int], int]


class ToolParser:
    """Base of the tool parsers. Subclasses set `_markers`, implement `_enter`, and may begin in another state."""

    #: What ends plain text. None may be contained in another.
    _markers: tuple[str, ...] = ()
    in_reasoning = False

    def __init__(
        self,
        tool_names: Collection[str] = (),
        *,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`tool_names`: where no marker tells a call from an answer that looks like one, only these are calls."""
        self._tool_names = frozenset(tool_names)
        self._out = Collector(parallel=parallel, new_id=new_id)
        self._held = ""
        self._state: State = self._in_text
        self._call: CallScanner | None = None

    @property
    def saw_tool_call(self) -> bool:
        return self._out.num_calls > 0

    @property
    def is_complete(self) -> bool:
        return self._out.is_complete

    def add(self, text: str) -> ParsedText:
        pos = 0
        while pos < len(text) and not self._out.is_complete:
            pos = self._state(text, pos)
        return self._out.take()

    def finish(self) -> ParsedText:
        if not self._out.is_complete:
            if self._call is not None:
                self._call.finish()
            self._end()
            self._out.content(self._held)
            self._held = ""
        return self._out.finish()

    def _enter(self, marker: str) -> None:
        """A marker was consumed: choose the next state."""
        raise NotImplementedError

    def _end(self) -> None:
        """The text ended: give out what the format's own state holds, besides `_held` and the call."""

    def _known(self, name: str) -> bool:
        return not self._tool_names or name in self._tool_names

    def _in_text(self, text: str, pos: int) -> int:
        """Plain text up to a marker. Keeps a possible beginning of one in `_held`."""
        buffer = self._held + text[pos:]
        found = [(at, marker) for marker in self._markers if (at := buffer.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            self._out.content(buffer[:at])
            pos += at + len(marker) - len(self._held)
            self._held = ""
            self._enter(marker)
            return pos
        keep = possible_marker_start(buffer, self._markers)
        self._out.content(buffer[: len(buffer) - keep])
        self._held = buffer[len(buffer) - keep :]
        return len(text)

    def _begin_call(self, prefix: str, accepts_name: Callable[[str], bool]) -> None:
        """Expect a JSON call object; `prefix` is the syntax before it."""
        self._call = CallScanner(self._out, accepts_name, prefix)
        self._state = self._in_call

    def _in_call(self, text: str, pos: int) -> int:
        assert self._call is not None
        pos = self._call.feed(text, pos)
        if self._call.failed:
            self._out.content(self._call.unsent)
            self._call = None
            self._state = self._in_text
        elif self._call.done:
            self._call = None
            self._after_call()
        return pos

    def _after_call(self) -> None:
        """A JSON call object is whole: choose the next state."""
        raise NotImplementedError

    def _skip_optional(self, literal: str, text: str, pos: int) -> int:
        """Swallow whitespace and `literal` if it comes, then go on with text. A state for `_after_call`."""
        if not self._held and text[pos] in WHITESPACE:
            end = pos + 1
            while end < len(text) and text[end] in WHITESPACE:
                end += 1
            self._out.content(text[pos:end])
            return end
        self._held += text[pos]
        if self._held == literal:
            self._held = ""
            self._state = self._in_text
            return pos + 1
        if literal.startswith(self._held):
            return pos + 1
        self._held = self._held[:-1]
        self._state = self._in_text
        return pos


def possible_marker_start(text: str, markers: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that begins, but is not, one of `markers`."""
    longest = min(max((len(marker) for marker in markers), default=1) - 1, len(text))
    for length in range(longest, 0, -1):
        end = text[len(text) - length :]
        if any(marker.startswith(end) for marker in markers):
            return length
    return 0
