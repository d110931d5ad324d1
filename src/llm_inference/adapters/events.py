"""Server-sent events as foreign servers write them, from bytes that may be cut anywhere.

Beside the format itself: `data:` with or without a space, CRLF, a last event without its empty line, and JSON that
stands in the stream without any framing (how some servers report an error after the status has gone out). Knows
nothing of what the data says.
"""

from __future__ import annotations

from llm_inference.errors import EngineError

DONE = b"[DONE]"

#: An event longer than this is none: even a whole answer with its log-probabilities is smaller.
MAX_EVENT_BYTES = 64 * 2**20


class EventReader:
    """`feed` it what the network brings, then `end`; both return the data of what is complete.

    Raises `EngineError` for an event without end.
    """

    __slots__ = ("_data", "_num_data_bytes", "_num_rest_bytes", "_rest")

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # the pieces of a line without its end: looked at once, however many they are
        self._num_rest_bytes = 0
        self._data: list[bytes] = []
        self._num_data_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        rest = self._rest
        if not rest and not self._data and data.startswith(b"data: ") and data.endswith(b"\n\n"):
            # Whole events of a line each, as nearly every piece of data is.
            whole = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(whole) and b"\r" not in data:
                return whole
        if b"\n" not in data and b"\r" not in data and not (rest and rest[-1].endswith(b"\r")):
            rest.append(data)
            self._num_rest_bytes += len(data)
            self._check_size()
            return []
        text = b"".join((*rest, data)) if rest else data
        # A CR at the very end may be half of a CRLF: wait for what follows.
        held = b"\r" if text.endswith(b"\r") else b""
        if b"\r" in text:
            text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, last = text.split(b"\n")
        last += held
        self._rest, self._num_rest_bytes = [last] if last else [], len(last)
        events: list[bytes] = []
        for line in lines:
            self._take(line, events)
        self._check_size()
        return events

    def end(self) -> list[bytes]:
        """The stream is over: what was begun counts as an event."""
        events: list[bytes] = []
        self._take(b"".join(self._rest).rstrip(b"\r"), events)
        self._rest, self._num_rest_bytes = [], 0
        self._flush(events)
        return events

    def _check_size(self) -> None:
        if self._num_rest_bytes + self._num_data_bytes > MAX_EVENT_BYTES:
            raise EngineError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes")

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            self._flush(events)
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._num_data_bytes += len(line)
        elif line[:1] in (b"{", b"["):
            self._flush(events)
            events.append(line)

    def _flush(self, events: list[bytes]) -> None:
        if self._data:
            events.append(b"\n".join(self._data))
            self._data, self._num_data_bytes = [], 0
