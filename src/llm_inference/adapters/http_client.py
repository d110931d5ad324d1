"""A small HTTP/1.1 client for servers in the next room: plain http, connections kept, no tasks, no timers per request.

A request on a kept connection that the server was just closing is sent once more, on a new one, if not a byte of an
answer had come. What is not plain http goes another way (`adapters/web_client.py`); `speaks` says which.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote, urlsplit

from llm_inference.adapters.http_connection import HttpConnection

#: Below the 5 s after which uvicorn, and so most servers of models, closes an idle connection: a request that is sent
#: just then would be lost.
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
#: Of an answer that is not streamed: many times what any model says at once.
MAX_WHOLE_BYTES = 64 * 2**20
_PATH_CHARS = "/%:@!$&'()*+,;=-._~?"


class Answer(Protocol):
    """An answer whose head is there. `headers`: names in lower case. Reading raises `OSError` for one that breaks."""

    status: int

    @property
    def content_type(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """What has arrived since the last time, at least a byte; b"" at its end."""
        ...

    async def end(self, within_s: float) -> None:
        """Its body says no more, so wait a moment for its end: the connection can then serve another request."""
        ...

    def close(self) -> None:
        """To be called at last in any case. Where it was not read to its end, the connection is cut."""
        ...


async def whole(answer: Answer) -> bytes:
    """The rest of its body. Raises `ConnectionAbortedError` where it is larger than `MAX_WHOLE_BYTES`."""
    pieces, num_bytes = [], 0
    while piece := await answer.read():
        pieces.append(piece)
        num_bytes += len(piece)
        if num_bytes > MAX_WHOLE_BYTES:
            raise ConnectionAbortedError(f"its answer is larger than {MAX_WHOLE_BYTES} bytes")
    return b"".join(pieces)


def said(error: BaseException) -> str:
    """What an error says of itself: never nothing."""
    return str(error) or type(error).__name__


@dataclass(slots=True)
class _Origin:
    """A server's address, and its connections that wait for the next request, the one used last at the end."""

    host: str
    port: int
    idle: deque[HttpConnection] = field(default_factory=deque)


class HttpClient:
    """`headers` go with every request. Belongs to one event loop; `close` cuts the connections that wait."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)
        self._origins: dict[tuple[str, int], _Origin] = {}
        self._prepared: dict[str, tuple[_Origin, str]] = {}  # URL → its server, the request's path and fixed headers
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def speaks(self, url: str) -> bool:
        """Plain http without a user; everything else needs more than this client knows."""
        if url in self._prepared:
            return True
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and "@" not in parts.netloc and parts.netloc.isascii()

    async def send(
        self, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, *, keep: bool = True
    ) -> Answer:
        """POST, or GET where there is no body. `keep=False`: on a connection that serves no other request after it.

        Raises `ConnectionRefusedError` where no connection could be made, another `OSError` where it broke.
        """
        origin, fixed = self._prepared.get(url) or self._prepare(url)
        head = [f"{'GET' if body is None else 'POST'} {fixed}"]
        for name, value in (headers or {}).items():
            head.append(_line(name, value))
        if not keep:
            head.append("connection: close\r\n")
        head.append("\r\n" if body is None else f"content-length: {len(body)}\r\n\r\n")
        request = "".join(head).encode() + (body or b"")
        connection = self._kept(origin) if keep else None
        if connection is not None:
            answer = await self._exchange(connection, origin, request, keep, may_be_stale=True)
            if answer is not None:
                return answer
        connection = await _connected(origin)
        answer = await self._exchange(connection, origin, request, keep)
        assert answer is not None
        return answer

    async def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for origin in self._origins.values():
            while origin.idle:
                origin.idle.pop().close()

    def give_back(self, connection: HttpConnection, origin: _Origin) -> None:
        """For the next request, if it may serve one; else it is cut."""
        if self._closed or not connection.reusable:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        origin.idle.append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEP_ALIVE_S, self._sweep)

    async def _exchange(
        self, connection: HttpConnection, origin: _Origin, request: bytes, keep: bool, *, may_be_stale: bool = False
    ) -> Answer | None:
        """None: the server had closed this connection before it could read the request."""
        try:
            connection.send(request)
            await connection.head()
            coding = _first(connection.headers, b"content-encoding")
            if coding.lower() not in (b"", b"identity"):
                raise ConnectionAbortedError(f"its answer is encoded as {coding.decode('latin-1')[:32]!r}, unasked")
        except BaseException as error:
            connection.close()
            if may_be_stale and not connection.begun and isinstance(error, ConnectionResetError):
                return None
            raise
        return _HttpAnswer(connection, self, origin, keep)

    def _kept(self, origin: _Origin) -> HttpConnection | None:
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while origin.idle:
            connection = origin.idle.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    def _sweep(self) -> None:
        """Close those that have waited too long, and look again when the next one may have."""
        loop = asyncio.get_running_loop()
        self._sweeping = None
        first = None
        for origin in self._origins.values():
            while origin.idle and (
                origin.idle[0].idle_since + KEEP_ALIVE_S <= loop.time() or not origin.idle[0].reusable
            ):
                origin.idle.popleft().close()
            if origin.idle:
                due = origin.idle[0].idle_since + KEEP_ALIVE_S
                first = due if first is None else min(first, due)
        if first is not None:
            self._sweeping = loop.call_at(first, self._sweep)

    def _prepare(self, url: str) -> tuple[_Origin, str]:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        origin = self._origins.setdefault((host, port), _Origin(host, port))
        path = quote(parts.path or "/", safe=_PATH_CHARS)
        if parts.query:
            path += f"?{quote(parts.query, safe=_PATH_CHARS)}"
        lines = [_line("host", parts.netloc), *(_line(name, value) for name, value in self._headers.items())]
        prepared = self._prepared[url] = (origin, f"{path} HTTP/1.1\r\n{''.join(lines)}")
        return prepared


class _HttpAnswer:
    """`Answer` on a connection that goes back to its client."""

    __slots__ = ("_client", "_complete", "_connection", "_keep", "_origin", "_raw_headers", "status")

    def __init__(self, connection: HttpConnection, client: HttpClient, origin: _Origin, keep: bool) -> None:
        self._connection: HttpConnection | None = connection
        self._client = client
        self._origin = origin
        self._keep = keep
        self.status = connection.status
        self._raw_headers = connection.headers
        self._complete = False

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case; "" where there is none."""
        value = _first(self._raw_headers, b"content-type")
        return value.partition(b";")[0].strip().lower().decode("latin-1")

    @property
    def headers(self) -> Mapping[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._raw_headers}

    async def read(self) -> bytes:
        connection = self._connection
        if connection is None:
            return b""
        data = await connection.read()
        self._complete = connection.complete
        return data

    async def end(self, within_s: float) -> None:
        connection = self._connection
        if connection is None or self._complete:
            return
        timer = asyncio.get_running_loop().call_later(within_s, connection.close)
        with suppress(OSError):
            await self.read()
        timer.cancel()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._complete and self._keep:
            self._client.give_back(connection, self._origin)
        else:
            connection.close()


async def _connected(origin: _Origin) -> HttpConnection:
    """A new connection. TCP_NODELAY is the event loop's default."""
    loop = asyncio.get_running_loop()
    connecting = loop.create_connection(lambda: HttpConnection(loop), origin.host, origin.port)
    try:
        _, connection = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
    except asyncio.TimeoutError as error:
        raise ConnectionRefusedError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
    except OSError as error:
        raise ConnectionRefusedError(str(error)) from error
    return connection


def _line(name: str, value: str) -> str:
    """Raises `ValueError` for what would be more than one header."""
    if "\r" in value or "\n" in value:
        raise ValueError(f"the header {name!r} holds a line break")
    return f"{name}: {value}\r\n"


def _first(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for given, value in headers if given == name), b"")
