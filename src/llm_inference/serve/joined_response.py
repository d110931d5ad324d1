"""uvicorn's side of one response, with the head and the first of the body in one piece.

uvicorn writes the head by itself: one more system call for us, and one more wake-up for the client, with every answer.
Here it waits for the body that follows it. Values of headers are checked all at once instead of each by a pattern.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class JoinedResponse(RequestResponseCycle):
    """Raises `RuntimeError` for messages out of order, and for what would break the response's framing."""

    _head: bytes = b""

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        wanted = "http.response.body" if self.response_started else "http.response.start"
        if message["type"] != wanted or self.response_complete:
            raise RuntimeError(f"the message {message['type']!r} has no place here in a response")
        if not self.response_started:
            self.response_started = True
            self.waiting_for_100_continue = False
            self._head = self._head_of(message["status"], message.get("headers", ()))
            return
        more = message.get("more_body", False)
        data = self._head + self._framed(message.get("body", b""), more)
        self._head = b""
        if data:
            self.transport.write(data)
        if not more:
            self._complete()

    def _head_of(self, status: int, headers: Any) -> bytes:
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        closes = False
        for name, value in (*self.default_headers, *headers):
            name = name.lower()
            if name == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length = 0
                self.chunked_encoding = True
            elif name == b"connection" and b"close" in [one.strip() for one in value.lower().split(b",")]:
                self.keep_alive = False
                closes = True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            raise RuntimeError("a header of the response holds a line break or a null")
        return head + b"\r\n"

    def _framed(self, body: bytes, more: bool) -> bytes:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            return b""
        if self.chunked_encoding:
            end = b"" if more else b"0\r\n\r\n"
            return b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        if len(body) > self.expected_content_length:
            raise RuntimeError("the body of the response is longer than its content-length")
        self.expected_content_length -= len(body)
        return body

    def _complete(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("the body of the response is shorter than its content-length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
