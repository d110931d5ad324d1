"""A streamed body as JSON values: server-sent events (read by `events`) or JSON lines, cut anywhere.

Knows no engine and no HTTP library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from llm_inference.adapters.events import DONE, EventReader
from llm_inference.errors import EngineError

#: How a body is framed; `json`: it is one value.
Framing = Literal["sse", "ndjson", "json"]

#: A line longer than this is no token but an accident.
MAX_LINE_BYTES = 16 * 2**20


class FrameReader:
    """`feed` bytes as they come, `finish` at the end; both give the values that became complete.

    After `[DONE]` nothing more comes out. Raises `EngineError` for what is not JSON, and for endless lines.
    """

    __slots__ = ("_line_bytes", "_reader", "done")

    def __init__(self, framing: Literal["sse", "ndjson"]) -> None:
        self._reader: EventReader | _LineReader = EventReader() if framing == "sse" else _LineReader()
        self._line_bytes = 0
        #: Whether the server said `[DONE]`.
        self.done = False

    def feed(self, chunk: bytes) -> Iterator[Any]:
        self._line_bytes = 0 if b"\n" in chunk else self._line_bytes + len(chunk)
        if self._line_bytes > MAX_LINE_BYTES:
            raise EngineError(f"the engine sent a line of more than {MAX_LINE_BYTES} bytes")
        return self._decoded(self._reader.feed(chunk))

    def finish(self) -> Iterator[Any]:
        """What the end of the body completes: an event or a line whose end mark is missing."""
        return self._decoded(self._reader.end())

    def _decoded(self, values: list[bytes]) -> Iterator[Any]:
        for value in values:
            if value.strip() == DONE:
                self.done = True
            if self.done:
                return
            if value.strip():
                yield decode(value)


class _LineReader:
    """Lines as `EventReader` gives events."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        first, *others = data.split(b"\n")
        self._rest.append(first)
        if not others:
            return []
        *whole, rest = others
        lines = [b"".join(self._rest), *whole]
        self._rest = [rest]
        return lines

    def end(self) -> list[bytes]:
        return [b"".join(self._rest)]


def decode(data: bytes, who: str = "the engine") -> Any:
    """One JSON value. Raises `EngineError` that shows the beginning of what `who` sent instead."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            # NaN and Infinity, as Python servers write them, and half a character, as those do that count in UTF-16.
            value = json.loads(data)
            text = json.dumps(value, ensure_ascii=False)
            return value if text.isascii() else json.loads(_without_halves(text))
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{who} sent no valid JSON: {data[:200]!r}") from error


def _without_halves(text: str) -> str:
    """With U+FFFD for each half of a character that stands alone: nobody could send it on."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
