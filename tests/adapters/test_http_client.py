from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import uvloop

from llm_inference.adapters import http_client, http_connection
from llm_inference.adapters.http_client import HttpClient, whole
from tests.adapters.raw_server import ABORT, CLOSE, HANG, RawServer, chunked, ok, raw_server
from tests.gateway.serving import until


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    made = HttpClient({"authorization": "Bearer k"})
    yield made
    await made.close()


async def get(client: HttpClient, server: RawServer, **options: Any) -> tuple[int, bytes]:
    answer = await client.send(server.url, b"{}", **options)
    try:
        return answer.status, await whole(answer)
    finally:
        answer.close()


async def test_what_is_sent(client: HttpClient) -> None:
    async with raw_server([ok()]) as server:
        answer = await client.send(server.url + "?q=a b#no", "é".encode(), {"x-request-id": "r"})
        answer.close()
        answer = await client.send(server.url)
        answer.close()
        post, probe = server.requests
        assert (
            post
            == (
                f"POST /v1/x?q=a%20b HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\nauthorization: Bearer k\r\n"
                "x-request-id: r\r\ncontent-length: 2\r\n\r\né"
            ).encode()
        )
        assert probe.startswith(b"GET /v1/x HTTP/1.1\r\n")
        assert b"content-length" not in probe
        with pytest.raises(ValueError, match="line break"):
            await client.send(server.url, b"", {"x": "a\r\nb: c"})


BODIES: list[tuple[list[bytes], int, bytes]] = [
    ([ok(b"abc")], 200, b"abc"),
    ([ok(b"")], 200, b""),
    ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b""),
    ([chunked(b"abc", b"de")], 200, b"abcde"),
    ([chunked(b"abc", end=False) + b"2;ext=1\r\nde\r\n0\r\nx-trailer: 1\r\n\r\n"], 200, b"abcde"),
    ([b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"abc")], 200, b"abc"),
    ([b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + ok(b"abc")], 200, b"abc"),
    ([b"HTTP/1.1 200 OK\r\n\r\nuntil the", b" end", CLOSE], 200, b"until the end"),
    ([b"HTTP/1.0 200 OK\r\n\r\nuntil the end", CLOSE], 200, b"until the end"),
    ([ok(b"moved", b"Location: /", status=b"302 Found")], 302, b"moved"),
    ([ok(b"x" * 3_000_000)], 200, b"x" * 3_000_000),
]


@pytest.mark.parametrize(("pieces", "status", "body"), BODIES)
async def test_bodies_of_every_framing(client: HttpClient, pieces: Sequence[bytes], status: int, body: bytes) -> None:
    async with raw_server(pieces) as server:
        assert await get(client, server) == (status, body)


@pytest.mark.parametrize("answer", [ok(b"abc", b"X-A: 1"), chunked(b"ab", b"c")])
async def test_cut_anywhere(client: HttpClient, answer: bytes) -> None:
    cuts = [[answer[:place], answer[place:]] for place in range(1, len(answer))]
    async with raw_server(*cuts) as server:
        for _ in cuts:
            assert await get(client, server) == (200, b"abc")
        assert server.num_connections == 1


@pytest.mark.parametrize("answer", [ok(b"abc"), chunked(b"ab", b"c")])
async def test_broken_off_anywhere(client: HttpClient, answer: bytes) -> None:
    cuts = [[answer[:place], end] for place in range(len(answer)) for end in (CLOSE, ABORT)]
    async with raw_server(*cuts) as server:
        for place in range(len(cuts)):
            with pytest.raises(ConnectionResetError):
                await get(client, server)
            assert len(server.requests) == place + 1, "what was on a new connection is not sent again"


async def test_pieces_come_as_they_arrive(client: HttpClient) -> None:
    async with raw_server([chunked(b"a", end=False), HANG]) as server:
        answer = await client.send(server.url, b"{}")
        assert answer.content_type == "text/event-stream"
        assert await answer.read() == b"a"
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0.01)
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        answer.close()
        await until(lambda: server.num_open == 0)


async def test_a_cancelled_wait_for_the_head_cuts_the_connection(client: HttpClient) -> None:
    async with raw_server([HANG]) as server:
        task = asyncio.create_task(client.send(server.url, b"{}"))
        await until(lambda: len(server.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.num_open == 0)


async def test_connections_are_kept_while_both_want_it(client: HttpClient) -> None:
    async with raw_server([ok()], [ok()], [ok(b"", b"Connection: close")], [ok()]) as server:
        for _ in range(3):
            await get(client, server)
        assert server.num_connections == 1
        await get(client, server)
        assert server.num_connections == 2
        await get(client, server, keep=False)
        assert server.num_connections == 3
        assert b"connection: close\r\n" in server.requests[-1]


async def test_an_answer_that_was_not_read_costs_its_connection(client: HttpClient) -> None:
    async with raw_server([ok(b"abc")]) as server:
        answer = await client.send(server.url, b"{}")
        answer.close()
        answer.close()
        await get(client, server)
        assert server.num_connections == 2


async def test_a_request_on_a_stale_connection_is_sent_once_more(client: HttpClient) -> None:
    async with raw_server([ok()], [ABORT], [ok(b"again")]) as server:
        await get(client, server)
        assert await get(client, server) == (200, b"again")
        assert (server.num_connections, len(server.requests)) == (2, 3)


async def test_once_more_is_not_twice(client: HttpClient) -> None:
    async with raw_server([ok()], [CLOSE]) as server:
        await get(client, server)
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            await get(client, server)
        assert len(server.requests) == 3


async def test_what_has_begun_is_not_sent_again(client: HttpClient) -> None:
    async with raw_server([ok()], [b"HTTP/1.1 2", ABORT], [ok()]) as server:
        await get(client, server)
        with pytest.raises(ConnectionResetError):
            await get(client, server)
        assert len(server.requests) == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used(client: HttpClient) -> None:
    async with raw_server([ok(), CLOSE], [ok()]) as server:
        await get(client, server)
        await until(lambda: server.num_open == 0)
        await asyncio.sleep(0.01)
        assert await get(client, server) == (200, b"ok")
        assert len(server.requests) == 2


async def test_idle_connections_are_closed_in_time(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "KEEP_ALIVE_S", 0.05)
    async with raw_server([ok()]) as server:
        await asyncio.gather(*(get(client, server) for _ in range(3)))
        assert server.num_open == server.num_connections > 1
        await until(lambda: server.num_open == 0)
        await get(client, server)


async def test_closing_cuts_what_waits_and_what_comes_back() -> None:
    client = HttpClient({})
    async with raw_server([ok()]) as server:
        await get(client, server)
        answer = await client.send(server.url, b"{}")
        await client.close()
        assert await whole(answer) == b"ok"
        answer.close()
        await until(lambda: server.num_open == 0)


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (b"no http at all\r\n\r\n", "no valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "no valid HTTP"),
        (b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nx", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000, "head of its answer"),
        (ok(b"x", b"Content-Encoding: gzip"), "encoded"),
    ],
)
async def test_what_is_no_answer(client: HttpClient, bytes_sent: bytes, reason: str) -> None:
    async with raw_server([bytes_sent, HANG]) as server:
        with pytest.raises(ConnectionError, match=reason):
            await get(client, server)
        await until(lambda: server.num_open == 0)


async def test_what_nobody_asked_for_ends_an_idle_connection(client: HttpClient) -> None:
    async with raw_server([ok(), b"HTTP/1.1 408 Timeout\r\n\r\n"], [ok(b"new")]) as server:
        await get(client, server)
        await asyncio.sleep(0.02)
        assert await get(client, server) == (200, b"new")
        assert server.num_connections == 2


async def test_a_server_that_is_faster_than_we_read_has_to_wait(client: HttpClient) -> None:
    sent = 0
    piece = b"x" * 65536

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(1000):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        writer.close()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0)
    answer = await client.send(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/")
    await asyncio.sleep(0.2)
    held = sent
    assert http_connection.MAX_HELD_BYTES < held < 40 * 2**20
    num_bytes = 0
    while data := await answer.read():
        num_bytes += len(data)
    assert num_bytes == 1000 * len(piece)
    answer.close()
    listening.close()


async def test_a_body_without_end_is_given_up(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_WHOLE_BYTES", 1000)
    async with raw_server([ok(b"x" * 2000)]) as server:
        with pytest.raises(ConnectionAbortedError, match="larger than 1000 bytes"):
            await get(client, server)


@pytest.mark.parametrize("late", [b"0\r\n\r\n", HANG])
async def test_the_end_of_a_body_is_waited_for_a_moment(client: HttpClient, late: bytes) -> None:
    async with raw_server([chunked(b"done", end=False), late], [ok()]) as server:
        answer = await client.send(server.url, b"{}")
        assert await answer.read() == b"done"
        await answer.end(0.05)
        answer.close()
        await get(client, server)
        assert server.num_connections == (2 if late == HANG else 1)


async def test_nobody_there(client: HttpClient) -> None:
    async with raw_server([ok()]) as server:
        url = server.url
    with pytest.raises(ConnectionRefusedError):
        await client.send(url)
    with pytest.raises(ConnectionRefusedError):
        await client.send("http://no.such.host.invalid/")


async def test_a_connection_that_is_not_made_in_time(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(http_client, "CONNECT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(ConnectionRefusedError, match="no connection within"):
        await client.send("http://127.0.0.1:9/")


@pytest.mark.parametrize(
    ("url", "speaks"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://[::1]:8000", True),
        ("https://127.0.0.1", False),
        ("http://user:pass@127.0.0.1", False),
        ("http://bücher.invalid", False),
        ("http:///v1", False),
        ("grpc://127.0.0.1", False),
    ],
)
def test_which_urls_it_speaks(url: str, speaks: bool) -> None:
    assert HttpClient({}).speaks(url) is speaks


def test_all_of_it_on_uvloop_too() -> None:
    async def work() -> None:
        client = HttpClient({})
        async with raw_server([ok()], [ABORT], [chunked(b"a", b"b")], [HANG]) as server:
            assert await get(client, server) == (200, b"ok")
            assert await get(client, server) == (200, b"ab")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(get(client, server), 0.02)
            await until(lambda: server.num_open == 0)
        await client.close()

    uvloop.run(work())
    gc.collect()  # nothing was left open: a warning would be an error
