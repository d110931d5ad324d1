"""A server that speaks the OpenAI API and does no work: the floor under every gateway in front of it.

    python -m benchmarks.gateway.mock_upstream [--port 0]     prints the port

A prompt that holds `events=E every=Mms` is answered with E content events; M milliseconds apart, or with 0 all at once.
`first=Fms` after it: the first byte comes after so long, as a prompt takes its time.
Where the body does not ask for a stream it is one JSON. HTTP is parsed as far as our own clients go, no further.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from typing import Any

import uvloop

_WANTED = re.compile(rb"events=(\d+) every=(\d+)ms(?: first=(\d+)ms)?")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_HEAD = b'{"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"mock","choices":['
_ROLE = b'data: %s{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n' % _HEAD
_CONTENT = b'data: %s{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n' % _HEAD
_STOP = b'data: %s{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n' % _HEAD
_USAGE = b'data: %s],"usage":{"prompt_tokens":12,"completion_tokens":%%d,"total_tokens":%%d}}\n\n' % _HEAD
_DONE = b"data: [DONE]\n\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS = (
    b'{"object":"list","data":[{"id":"mock","object":"model","created":1,"owned_by":"mock","max_model_len":32768}]}'
)
_ANSWER = (
    b'{"id":"chatcmpl-mock","object":"chat.completion","created":1700000000,"model":"mock","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":%d,"total_tokens":%d}}'
)
#: A stream without pauses leaves in pieces of so many events, as it would out of a busy engine's socket.
_EVENTS_A_WRITE = 32


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _json(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


class MockConnection(asyncio.Protocol):
    """One connection; requests one after the other."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end]
            length = _LENGTH.search(head)
            total = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < total:
                return
            body, self._data = self._data[end + 4 : total], self._data[total:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._transport.write(_json(_MODELS))
            return
        wanted = _WANTED.search(body)
        events, every_ms = (int(wanted[1]), int(wanted[2])) if wanted else (1, 0)
        if b'"stream":true' not in body and b'"stream": true' not in body:
            self._transport.write(_json(_ANSWER % (b" word" * events, events, events + 12)))
            return
        last = _STOP + (_USAGE % (events, events + 12) if b"include_usage" in body else b"") + _DONE
        end = _chunk(last) + b"0\r\n\r\n"
        if every_ms:
            first_s = int(wanted[3] or 0) / 1000 if wanted else 0.0
            self._timer = self._loop.call_later(first_s, self._begin, events, every_ms / 1000, end)
            return
        whole, rest = divmod(events, _EVENTS_A_WRITE)
        pieces = _chunk(_CONTENT * _EVENTS_A_WRITE) * whole + (_chunk(_CONTENT * rest) if rest else b"")
        self._transport.write(_STREAM_HEAD + _chunk(_ROLE) + pieces + end)

    def _begin(self, events: int, pause_s: float, end: bytes) -> None:
        self._transport.write(_STREAM_HEAD + _chunk(_ROLE))
        self._tick(events, pause_s, end)

    def _tick(self, left: int, pause_s: float, end: bytes) -> None:
        if left == 0:
            self._transport.write(end)
            return
        self._timer = self._loop.call_later(pause_s, self._event, left, pause_s, end)

    def _event(self, left: int, pause_s: float, end: bytes) -> None:
        self._transport.write(_SINGLE)
        self._tick(left - 1, pause_s, end)


_SINGLE = _chunk(_CONTENT)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(MockConnection, "127.0.0.1", port, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
