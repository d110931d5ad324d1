"""Server-sent events as bytes, and the headers that keep proxies from holding them back. Knows no payload."""

from __future__ import annotations

#: The last frame of a stream that ended well. A stream that failed ends without it.
DONE = b"data: [DONE]\n\n"

HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def frame(payload: bytes) -> bytes:
    """One event. `payload` is JSON on one line, as msgspec writes it: it holds no raw newline."""
    return b"data: " + payload + b"\n\n"
