"""A load of chat requests from raw sockets, cheap enough to share a core with the mock upstream.

Closed loop: `concurrency` connections, each with one request at a time. It knows of HTTP what it needs: a body with a
content-length, or chunked up to the empty chunk.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Load:
    """What came back. Times are seconds; `first_byte_s` is the response head's, of each request."""

    total_s: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    num_events: int = 0
    num_broken: int = 0
    duration_s: float = 0.0

    @property
    def num_ok(self) -> int:
        return self.statuses.get(200, 0)


def percentile(values: list[float], share: float) -> float:
    """By the nearest rank; NaN of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def chat_request(
    host: str,
    *,
    model: str,
    key: str,
    events: int,
    every_ms: int = 0,
    first_ms: int = 0,
    stream: bool,
    headers: dict[str, str] | None = None,
) -> bytes:
    """The bytes of a request that makes the mock answer with `events` events."""
    first = f" first={first_ms}ms" if first_ms else ""
    content = f"Say something. events={events} every={every_ms}ms{first}"
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": events}
    if stream:
        body["stream"] = True
    data = json.dumps(body).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\n{more}content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Client(asyncio.Protocol):
    """One connection of the load. `next_request` gives the bytes of the next request, or None: it closes."""

    def __init__(self, load: Load, next_request: Any, on_answer: Any = None) -> None:
        self._load = load
        self._next = next_request
        self._on_answer = on_answer
        self._transport: Any = None
        self._head = b""
        self._status = 0
        self._left: int | None = None  # bytes of a body with a length
        self._tail = b""
        self._sent = self._first_byte_s = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            if self._sent:
                self._load.num_broken += 1
            self.done.set_result(None)

    def _send(self) -> None:
        request = self._next()
        if request is None:
            self._sent = 0.0
            if not self.done.done():
                self.done.set_result(None)
            self._transport.close()
            return
        self._head, self._status, self._left, self._tail = b"", 0, None, b""
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self._status:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            self._status = int(head[9:12])
            self._first_byte_s = time.perf_counter() - self._sent
            self._load.first_byte_s.append(self._first_byte_s)
            place = head.find(b"content-length:")
            if place >= 0:
                self._left = int(head[place + 15 :].split(b"\r\n", 1)[0])
            self._head = head
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._answered()
            return
        # A frame's "data: " may be cut in two: count it with the end of what came before.
        self._load.num_events += (self._tail[-5:] + data).count(b"data: ")
        self._tail = (self._tail + data)[-16:]
        if self._tail.endswith(b"0\r\n\r\n"):
            self._answered()

    def _answered(self) -> None:
        total_s = time.perf_counter() - self._sent
        load = self._load
        load.statuses[self._status] = load.statuses.get(self._status, 0) + 1
        load.total_s.append(total_s)
        if self._on_answer is not None:
            self._on_answer(self._status, self._first_byte_s, total_s, self._head)
        self._send()


async def closed_loop(port: int, request: bytes, *, concurrency: int, duration_s: float, pause_s: float = 0.0) -> Load:
    """Send `request` over and over on `concurrency` connections, for `duration_s`."""
    load = Load()
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    until = begun + duration_s

    def next_request() -> bytes | None:
        return request if time.perf_counter() < until else None

    clients: list[Client] = []
    for _ in range(concurrency):
        _, client = await loop.create_connection(lambda: Client(load, next_request), "127.0.0.1", port)
        clients.append(client)
        if pause_s:
            await asyncio.sleep(pause_s)
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), duration_s + 30)
    load.duration_s = time.perf_counter() - begun
    return load
