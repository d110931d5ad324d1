"""One HTTP connection with bounds on what a client may make us hold, and for how long.

uvicorn's parser takes headers of any size, waits for the rest of a request for ever, and for a client that does not
read for ever, too. Here:

    head of a request     at most MAX_HEAD_BYTES, complete within HEAD_TIMEOUT_S      else 431, 408
    body of a request     something arrives every BODY_IDLE_S while we want it, and all within BODY_TIMEOUT_S,
                          and no longer than LINGER_S after the answer                else 408
    beside a body         at most MAX_HEAD_BYTES of chunk extensions or trailers      else 431
    bytes for the client  the client takes some every WRITE_STALL_S                   else the connection is cut

A request that ends so is a client that left: its work is aborted like any other's. A connection that is lost tells
every request on it, also one with others queued behind it. Trailers are read over: as headers they would pass whoever
checks those. The offer to go on in another protocol (`Upgrade: h2c` of Java's client) is declined: the request is
answered in this one. Knows nothing of routes, bodies or engines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, ClassVar

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llm_inference.serve.joined_response import JoinedResponse

#: status → (reason phrase, code, message)
_REFUSALS = {
    400: ("Bad Request", "invalid_http", "This is no valid HTTP request."),
    408: ("Request Timeout", "request_timeout", "The request did not arrive in time; send it again."),
    431: ("Request Header Fields Too Large", "headers_too_large", "The request's line and headers are too large."),
}


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol on httptools, with limits. The class attributes are the limits."""

    MAX_HEAD_BYTES: ClassVar[int] = 64 * 1024
    HEAD_TIMEOUT_S: ClassVar[float] = 30.0
    BODY_IDLE_S: ClassVar[float] = 60.0
    BODY_TIMEOUT_S: ClassVar[float] = 600.0
    LINGER_S: ClassVar[float] = 10.0
    WRITE_STALL_S: ClassVar[float] = 60.0
    #: How often the clocks are looked at.
    CHECK_S: ClassVar[float] = 5.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True  # of a request that has begun, or of the first that is to come
        self._in_body = False
        self._got_on = False  # a head began or body came in the piece of data that is being parsed
        self._num_head_bytes = 0
        self._last_data = self._head_since = self._answered = self.loop.time()
        self._last_write = self._head_since  # the client took something, or there was nothing to take
        self._num_unsent = 0
        self._check_timer: asyncio.TimerHandle | None = None
        self._unfinished: deque[Any] = deque()  # requests before the newest one, which are answered in their order
        self._declining = False  # this head offers another protocol

    # --- asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._check_timer = self.loop.call_later(self.CHECK_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
        super().connection_lost(exc)
        self._leave()

    def data_received(self, data: bytes) -> None:
        self._last_data = self.loop.time()
        before = self._in_head, self._in_body
        self._got_on = False
        self._unset_keepalive_if_required()
        self._parse(data)
        if (self._in_head or self._in_body) and before == (self._in_head, self._in_body) and not self._got_on:
            self._count_head(len(data))

    def resume_writing(self) -> None:
        self._last_write = self.loop.time()
        super().resume_writing()

    # --- the parser

    def on_message_begin(self) -> None:
        self._in_head, self._in_body, self._got_on = True, False, True
        self._num_head_bytes = 0
        self._head_since = self.loop.time()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._declining = True
            return
        self._in_head, self._in_body = False, True
        self._num_head_bytes = 0
        before = self.cycle
        super().on_headers_complete()
        self.cycle.__class__ = JoinedResponse  # nothing of it has run yet, and uvicorn has no place to name another
        while self._unfinished and self._unfinished[0].response_complete:
            self._unfinished.popleft()
        if before is not None and not before.response_complete:
            self._unfinished.append(before)

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        self._got_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._declining:
            return
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answered = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400)

    # --- inside

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._declining:
                self._declining = False
                self._parse(self._head_without_upgrade() + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self.send_400_response(str(error))

    def _head_without_upgrade(self) -> bytes:
        """The head that was just parsed, for a parser of its own: the old one takes no more of this connection."""
        line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn makes them
        return b"\r\n".join([line, *headers, b"", b""])

    def _count_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self.MAX_HEAD_BYTES:
            self._refuse(431)

    def _check(self) -> None:
        self._check_timer = self.loop.call_later(self.CHECK_S, self._check)
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self._num_unsent:
            self._last_write = now
        self._num_unsent = unsent
        if now - self._last_write > self.WRITE_STALL_S:
            self.transport.abort()
        elif self.transport.is_closing():
            return  # it is being flushed
        elif self._in_head and now - self._head_since > self.HEAD_TIMEOUT_S:
            self._refuse(408)
        elif self._in_body:
            self._check_body(now)

    def _check_body(self, now: float) -> None:
        if self.flow.read_paused:
            self._last_data = now  # it is us who do not want more
        elif self.cycle.response_complete:
            if now - self._answered > self.LINGER_S:
                self.transport.close()
        elif now - self._last_data > self.BODY_IDLE_S or now - self._head_since > self.BODY_TIMEOUT_S:
            self._refuse(408)

    def _refuse(self, status: int) -> None:
        """Say why, unless an answer is under way, and close."""
        if self.transport.is_closing():
            return
        answering = any(not cycle.response_complete and cycle.response_started for cycle in self._cycles())
        if not answering:
            phrase, code, message = _REFUSALS[status]
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
            body = msgspec.json.encode({"error": error})
            head = (
                f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self._leave()
        self.transport.close()

    def _leave(self) -> None:
        """Tell every request on this connection that its client is gone."""
        for cycle in self._cycles():
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()

    def _cycles(self) -> list[Any]:
        return self._unfinished if self.cycle is None else [*self._unfinished, self.cycle]
