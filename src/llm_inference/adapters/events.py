"""Server-sent events as foreign servers write them, from bytes that may be cut anywhere.

Beside the format itself: `data:` with or without a space, CRLF, a last event without its empty line, and JSON that
stands in the stream without any framing (how some servers report an error after the status has gone out). Knows
nothing of what the data says.
"""

from __future__ import annotations

DONE = b"[DONE]"


class EventReader:
    """`feed` it what the network brings, then `end`; both return the data of what is complete."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        text = self._rest + data
        # A CR at the very end may be half of a CRLF: wait for what follows.
        held = b"\r" if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = rest + held
        events: list[bytes] = []
        for line in lines:
            self._take(line, events)
        return events

    def end(self) -> list[bytes]:
        """The stream is over: what was begun counts as an event."""
        events: list[bytes] = []
        self._take(self._rest.rstrip(b"\r"), events)
        self._rest = b""
        self._flush(events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            self._flush(events)
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line[:1] in (b"{", b"["):
            self._flush(events)
            events.append(line)

    def _flush(self, events: list[bytes]) -> None:
        if self._data:
            events.append(b"\n".join(self._data))
            self._data = []
