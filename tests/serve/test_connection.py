"""Clients that send too much, too slowly, or never read: each is cut off, and whoever shares the server is unharmed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.gateway.app import create_app
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.serve.connection import BoundedConnection

LONG = FakeScript(answers=["x" * 1_000_000], delay_s=0.001)


class Impatient(BoundedConnection):
    MAX_HEAD_BYTES = 4096
    HEAD_TIMEOUT_S = 0.3
    BODY_IDLE_S = 0.3
    BODY_TIMEOUT_S = 1.0
    LINGER_S = 0.3
    WRITE_STALL_S = 0.5
    CHECK_S = 0.05


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are pytest's


@asynccontextmanager
async def listening(
    script: FakeScript | None = None, **settings: Any
) -> AsyncIterator[tuple[int, FakeEngine, FastAPI]]:
    engine = FakeEngine("fake", script=script, max_model_len=10_000_000)
    app = create_app({"fake": engine}, GatewaySettings(**settings), registry=CollectorRegistry())
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", lifespan="off", http=Impatient)
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    listener = server.servers[0].sockets[0]
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of the connections, too
    try:
        yield listener.getsockname()[1], engine, app
    finally:
        server.should_exit = True
        await task


def post(body: dict[str, Any], *headers: str) -> bytes:
    payload = json.dumps(body).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(payload)}", "", ""]).encode() + payload


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Status and body of the last answer on a connection that the server closes.

    Who still sends when it is closed may meet a reset behind the answer.
    """
    text = b""
    with suppress(ConnectionResetError):
        while piece := await asyncio.wait_for(reader.read(65_536), 30):
            text += piece
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def healthy(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    status, _ = await answer(reader)
    writer.close()
    return status == 200


@pytest.mark.parametrize(
    "flood",
    [
        [b"GET /health HTTP/1.1\r\n", *["".join(f"h{k}-{n}: x\r\n" for n in range(99)).encode() for k in range(20)]],
        [b"GET /health HTTP/1.1\r\nlong: ", *[b"a" * 1000] * 20],
        [b"GET /", *[b"a" * 1000] * 20],
    ],
    ids=["many headers", "one long header", "long path"],
)
async def test_a_head_without_end_is_refused(flood: list[bytes]) -> None:
    async with listening() as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answered = asyncio.create_task(answer(reader))
        for piece in flood:
            if answered.done() or writer.is_closing():
                break
            writer.write(piece)
            await asyncio.sleep(0.001)
        status, body = await answered
        assert (status, body["error"]["code"]) == (431, "headers_too_large")
        writer.close()
        assert await healthy(port)


async def test_heads_of_usual_size_and_many_requests_pass() -> None:
    async with listening() as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        one = b"GET /health HTTP/1.1\r\nHost: x\r\nlong: " + b"a" * 3000 + b"\r\n\r\n"
        got = b""
        for number in range(1, 6):
            writer.write(one)
            while got.count(b"200 OK") < number:
                got += await asyncio.wait_for(reader.read(10_000), 30)
        writer.write(one * 10)  # pipelined: each head is counted for itself
        while got.count(b"200 OK") < 15:
            got += await asyncio.wait_for(reader.read(10_000), 30)
        writer.close()


@pytest.mark.parametrize("begin", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"], ids=["nothing", "half a head"])
async def test_a_head_that_never_comes(begin: bytes) -> None:
    async with listening() as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in (begin, b"a: b\r\n", b"a: b\r\n") if begin else (b"",):  # some progress does not help
            writer.write(piece)
            await asyncio.sleep(0.05)
        status, body = await answer(reader)
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        writer.close()


async def test_a_body_that_never_comes() -> None:
    async with listening() as (port, engine, app):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post({"model": "fake", "prompt": "hello"})[:-5])
        status, body = await answer(reader)
        assert (status, body["error"]["code"]) == (408, "request_timeout")
        assert engine.requests == []
        assert app.state.gateway.admission.in_flight == 0
        writer.close()


async def test_a_body_that_drips_ends_at_the_total_limit() -> None:
    async with listening() as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post({"model": "fake", "prompt": "hello " * 100})[:-200])
        status_line = asyncio.create_task(reader.readline())  # what follows it may be lost to our own late writes
        begun = asyncio.get_running_loop().time()
        while not status_line.done():
            writer.write(b" ")
            await asyncio.sleep(0.1)
        assert b" 408 " in await status_line
        assert asyncio.get_running_loop().time() - begun >= 0.9
        writer.close()


async def test_a_slow_request_that_is_answered_is_left_alone() -> None:
    """The clocks are for what the client owes, not for what the engine takes."""
    async with listening(FakeScript(answers=["done"], first_delay_s=1.2)) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post({"model": "fake", "prompt": "hello"}, "Connection: close"))
        status, body = await answer(reader)
        assert (status, body["choices"][0]["text"]) == (200, "done")
        writer.close()


async def test_a_body_behind_its_answer_is_not_read_for_ever() -> None:
    async with listening(api_keys=("k",)) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        reply = asyncio.create_task(answer(reader))
        for _ in range(100):
            if reply.done() or writer.is_closing():
                break
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.02)
        assert (await reply)[0] == 401
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_never_reads_is_cut_and_its_work_aborted(stream: bool) -> None:
    script = FakeScript(answers=["x" * 1_000_000], delay_s=0.0) if not stream else LONG
    async with listening(script) as (port, engine, app):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.connect(("127.0.0.1", port))
        fields = {"model": "fake", "prompt": "hello", "max_tokens": 900_000, "stream": stream, "logprobs": 5}
        raw.sendall(post(fields if stream else {**fields, "max_tokens": 20_000}))
        for _ in range(400):
            await asyncio.sleep(0.05)
            if engine.requests and not app.state.gateway.admission.in_flight:
                break
        assert app.state.gateway.admission.in_flight == 0
        assert len(engine.aborted) == (1 if stream else 0)
        assert await healthy(port)
        raw.close()


async def test_a_slow_reader_is_served_to_the_end() -> None:
    async with listening(FakeScript(answers=["y" * 400])) as (port, _, _):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, ("127.0.0.1", port))
        await loop.sock_sendall(raw, post({"model": "fake", "prompt": "h", "stream": True, "max_tokens": 400}))
        got = b""
        begun = loop.time()
        while b"[DONE]" not in got:
            got += await asyncio.wait_for(loop.sock_recv(raw, 16_384), 30)
            await asyncio.sleep(0.04)
        assert loop.time() - begun > Impatient.WRITE_STALL_S, "it took longer than a stall may"
        raw.close()


async def test_requests_behind_each_other_all_end_with_the_connection() -> None:
    """A stream with another request queued behind it: the client's leaving ends the stream, too."""
    async with listening(LONG) as (port, engine, app):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stream = post({"model": "fake", "prompt": "hello", "stream": True, "max_tokens": 100_000})
        writer.write(stream + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        await reader.readuntil(b"data: ")
        writer.transport.abort()
        assert await app.state.gateway.wait_idle(2.0)
        assert len(engine.aborted) == 1


async def test_what_is_not_http_gets_a_json_error() -> None:
    async with listening() as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        status, body = await answer(reader)
        assert (status, body["error"]["code"], body["error"]["param"]) == (400, "invalid_http", None)
        writer.close()


CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n%s\r\n"
)
BODY = json.dumps({"model": "fake", "prompt": "hi"}).encode()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY), b"a: b\r\n" * 200),
        (b"%x\r\n%s\r\n0\r\nlong: " % (len(BODY), BODY), b"a" * 1000),
        (b"5;", b"a" * 1000),
    ],
    ids=["many trailers", "one long trailer", "a long chunk extension"],
)
async def test_what_stands_beside_a_body_is_bounded(begin: bytes, more: bytes) -> None:
    async with listening() as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED % b"" + begin)
        answered = asyncio.create_task(answer(reader))
        for _ in range(50):
            if answered.done() or writer.is_closing():
                break
            writer.write(more)
            await asyncio.sleep(0.001)
        assert (await answered)[0] == 431
        writer.close()
        assert await healthy(port)


async def test_chunks_of_one_byte_pass() -> None:
    async with listening() as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED % b"Connection: close\r\n")
        body = BODY + b" " * 4096
        for place in range(0, len(body), 16):
            writer.write(b"".join(b"1\r\n%c\r\n" % byte for byte in body[place : place + 16]))
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        assert (await answer(reader))[0] == 200
        writer.close()


async def test_a_trailer_is_no_header() -> None:
    trailers = b"authorization: Bearer k\r\nx-api-key: k\r\n"
    async with listening(api_keys=("k",)) as (port, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(BODY), BODY, trailers)
        writer.write(CHUNKED % b"Connection: close\r\n" + body)
        assert (await answer(reader))[0] == 401
        writer.close()


@pytest.mark.parametrize("num_pieces", [1, 7])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_offer_of_another_protocol_is_declined(chunked: bool, num_pieces: int) -> None:
    """As Java's client makes it in its first request; a body follows, and further requests on this connection."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    if chunked:
        first = CHUNKED % offer + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    else:
        first = post(json.loads(BODY), offer.decode().removesuffix("\r\n"))
    data = first + post(json.loads(BODY), "Connection: close")
    async with listening() as (port, engine, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        step = -(-len(data) // num_pieces)
        for place in range(0, len(data), step):
            writer.write(data[place : place + step])
            await asyncio.sleep(0.01)
        said = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert said.count(b"HTTP/1.1 200 OK") == 2
        assert len(engine.finished) == 2
