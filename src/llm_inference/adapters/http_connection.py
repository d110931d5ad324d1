"""One HTTP/1.1 connection to a server, from our end: a request goes out, its answer comes in pieces as they arrive.

    send ─► head ─► read, read, …, b""  ─► send …      `reusable` says whether another exchange may follow
                                   └─ close: at any time; how a server learns that its work is not wanted

No task and no timer of its own. Bodies are chunked, of a known length, or end with the connection. What arrives while
nobody reads is held up to `MAX_HELD_BYTES`; beyond it the server has to wait. It knows no URLs and no pool.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httptools

MAX_HELD_BYTES = 256 * 1024
MAX_HEAD_BYTES = 64 * 1024
#: What common servers send all the same, and what other clients read.
_LENIENT = (
    "lenient_headers",
    "lenient_optional_cr_before_lf",
    "lenient_spaces_after_chunk_size",
    "lenient_data_after_close",
)


class HttpConnection(asyncio.Protocol):
    """Methods that wait raise `ConnectionResetError` for a connection that is lost or an answer that is no HTTP."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: Any = None
        self._parser: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: str | None = None
        self._pieces: list[bytes] = []
        self._num_held = 0
        self._num_head_bytes = 0
        self._paused = False
        self._has_head = False
        self._until_eof = False
        self._keeps_alive = False
        self._lost = False
        #: No exchange is under way.
        self.complete = True
        #: Something of the answer has arrived.
        self.begun = False
        self.idle_since = 0.0
        self.status = 0
        #: Of the answer, names in lower case.
        self.headers: list[tuple[bytes, bytes]] = []

    @property
    def reusable(self) -> bool:
        """The exchange is over, and both sides keep the connection."""
        return self.complete and self._keeps_alive and not self._lost and not self._pieces

    def send(self, request: bytes) -> None:
        """Begin an exchange. Nothing is under way, and nobody else uses the connection."""
        assert self.complete
        self.complete = self.begun = self._has_head = self._until_eof = self._keeps_alive = False
        self._error, self.status, self._num_head_bytes = None, 0, 0
        self.headers = []
        if self._lost:
            self._fail("the server closed the connection")
        else:
            self._transport.write(request)

    async def head(self) -> None:
        """Wait for `status` and `headers`."""
        while not self._has_head:
            if self._error is not None:
                raise ConnectionResetError(self._error)
            await self._wait()

    async def read(self) -> bytes:
        """What has arrived of the body since the last time, at least a byte; b"": it is over."""
        while True:
            pieces = self._pieces
            if pieces:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self._pieces, self._num_held = [], 0
                if self._paused:
                    self._paused = False
                    if not self._lost:
                        self._transport.resume_reading()
                return data
            if self.complete:
                return b""
            if self._error is not None:
                raise ConnectionResetError(self._error)
            await self._wait()

    def close(self) -> None:
        """At once, whatever is under way."""
        self._keeps_alive = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._new_parser()

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self.close()  # nobody has asked for that
            return
        self.begun = True
        if not self._has_head:
            self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"its answer is no valid HTTP ({error})")
            self.close()
        except httptools.HttpParserUpgrade:
            self._fail("it wants to speak another protocol")
            self.close()
        if not self._has_head and self._num_head_bytes > MAX_HEAD_BYTES:
            self._fail(f"the head of its answer is larger than {MAX_HEAD_BYTES} bytes")
            self.close()
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self._has_head or self._error is not None):
            waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if not self.complete:
            if self._has_head and self._until_eof and exc is None and self._error is None:
                self.complete = True
            else:
                self._fail(str(exc) if exc is not None else "the server closed the connection")
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._parser = None  # it and we hold each other

    # --- the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.complete:
            self.close()  # a second answer to one request: what comes from here on belongs to nobody
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []  # 100 and 103: the answer is still to come
            return
        self.status = status
        self._has_head = True
        self._keeps_alive = self._parser.should_keep_alive()
        self._until_eof = not self._keeps_alive and not self._has_length()

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._pieces.append(body)
        self._num_held += len(body)
        if self._num_held > MAX_HELD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._has_head:
            self.complete = True

    # --- inside

    async def _wait(self) -> None:
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _has_length(self) -> bool:
        for name, value in self.headers:
            if name == b"content-length" or (name == b"transfer-encoding" and value.lower().endswith(b"chunked")):
                return True
        return False

    def _fail(self, reason: str) -> None:
        if self._error is None:
            self._error = reason

    def _new_parser(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        for name in _LENIENT:
            with suppress(AttributeError, TypeError):  # older ones are as strict as they are
                self._parser.set_dangerous_leniencies(**{name: True})
