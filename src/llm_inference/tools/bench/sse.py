"""Server-sent events, read from bytes that may be cut anywhere. Knows nothing of what the data says."""

from __future__ import annotations


class EventReader:
    """Feed it what the network brings; it returns the data of the events that are complete.

    Follows the event-stream format: lines end in LF, CRLF or CR, several `data` lines of an event are joined by LF,
    lines that begin with a colon are comments, other fields are skipped, an unfinished event is not an event.
    """

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
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return events
