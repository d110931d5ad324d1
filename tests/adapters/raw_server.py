"""A server that answers with the very bytes that a test gives it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

HANG = b"<hang>"
CLOSE = b"<close>"
ABORT = b"<abort>"


@dataclass
class RawServer:
    """`answers`: for each request in turn what is sent, piece by piece; the last one is for all that follow."""

    answers: list[Sequence[bytes]]
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    num_connections: int = 0
    num_open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/x"

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.num_open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
                self.requests.append(head + body)
                for piece in answer:
                    if piece == HANG:
                        await reader.read()
                        return
                    if piece == CLOSE:
                        return
                    if piece == ABORT:
                        writer.transport.abort()
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.num_open -= 1
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def raw_server(*answers: Sequence[bytes]) -> AsyncIterator[RawServer]:
    server = RawServer(list(answers))
    listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def ok(body: bytes = b"ok", *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """A whole answer of a known length."""
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body), b"", body])


def chunked(*pieces: bytes, end: bool = True) -> bytes:
    """The body, with its head."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + (b"0\r\n\r\n" if end else b"")
