from __future__ import annotations

import base64
import gzip
from collections.abc import AsyncIterator

import pytest

from llm_inference.adapters.http_client import whole
from llm_inference.adapters.upstream import Upstream
from llm_inference.adapters.web_client import WebClient
from llm_inference.errors import EngineError, NotReadyError
from tests.adapters.raw_server import ABORT, HANG, RawServer, chunked, ok, raw_server
from tests.gateway.serving import until


@pytest.fixture
async def client() -> AsyncIterator[WebClient]:
    made = WebClient({"x-all": "1"})
    yield made
    await made.close()


def with_user(server: RawServer) -> str:
    return f"http://me:secret@127.0.0.1:{server.port}"


async def test_a_user_in_the_url_and_compressed_answers(client: WebClient) -> None:
    async with raw_server([ok(gzip.compress(b"hello"), b"Content-Encoding: gzip", b"X-B: 2")], [ok()]) as server:
        answer = await client.send(with_user(server) + "/v1/x", b"{}", {"x-request-id": "r"})
        assert (answer.status, answer.content_type, answer.headers["x-b"]) == (200, "", "2")
        assert await whole(answer) == b"hello"
        answer.close()
        answer = await client.send(with_user(server), keep=False)
        answer.close()
        first, second = (request.lower() for request in server.requests)
        assert b"authorization: basic " + base64.b64encode(b"me:secret").lower() in first
        assert b"x-all: 1" in first
        assert b"x-request-id: r" in first
        assert second.startswith(b"get ")
        assert b"connection: close" in second


async def test_broken_and_refused(client: WebClient) -> None:
    async with raw_server([ABORT], [chunked(b"a", end=False), ABORT]) as server:
        url = with_user(server)
        with pytest.raises(ConnectionResetError):
            await client.send(url, b"{}")
        answer = await client.send(url, b"{}")
        with pytest.raises(ConnectionResetError):
            await whole(answer)
        answer.close()
    with pytest.raises(ConnectionRefusedError):
        await client.send(url)


@pytest.mark.parametrize("late", [b"0\r\n\r\n", HANG])
async def test_the_end_of_a_body_is_waited_for_a_moment(client: WebClient, late: bytes) -> None:
    async with raw_server([chunked(b"done", end=False), late]) as server:
        answer = await client.send(with_user(server), b"{}")
        assert await answer.read() == b"done"
        await answer.end(0.05)
        answer.close()
        if late == HANG:
            await until(lambda: server.num_open == 0)


async def test_an_upstream_takes_it_where_a_url_needs_it() -> None:
    stream = chunked(b"data: 1\n\nda", b"ta: 2\n\n", b"data: [DONE]\n\n")
    async with raw_server([stream], [ABORT], [ok(b'{"a": 1}')]) as server:
        upstream = Upstream([with_user(server)], name="far")
        await upstream.open()
        events = [one async for one in upstream.stream("/x", {}, request_id="r")]
        assert [event for together in events for event in together] == [b"1", b"2"]
        with pytest.raises(EngineError, match="broke the connection") as caught:
            [one async for one in upstream.stream("/x", {}, request_id="r")]
        assert "secret" not in str(caught.value)
        assert (await upstream.ask(with_user(server))).body == {"a": 1}
        await upstream.close()
    await upstream.open()
    with pytest.raises(NotReadyError, match="cannot be reached"):
        [one async for one in upstream.stream("/x", {}, request_id="r")]
    await upstream.close()
