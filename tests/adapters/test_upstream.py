"""Servers that answer with anything but an answer, over real sockets: one error of ours, in bounded time and memory."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from llm_inference.adapters import events, http_client, openai
from llm_inference.adapters.openai_http import OpenAIEngine, OpenAISettings
from llm_inference.adapters.upstream import Upstream, without_user
from llm_inference.errors import EngineError, LLMInferenceError, NotReadyError
from tests.adapters.upstream_server import collect, request, said, sse, texts, usage


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@10.0.0.5:8000/v1", "http://10.0.0.5:8000/v1"),
        ("http://10.0.0.5:8000/a@b", "http://10.0.0.5:8000/a@b"),
        ("http://user@[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_errors_show_no_password(url: str, shown: str) -> None:
    assert without_user(url) == shown


MODELS = b'{"object": "list", "data": [{"id": "m", "max_model_len": 64}]}'
ANSWER = sse(said("he"), said("llo"), said(finish="stop"), usage(5, 2))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = HEAD + b"%x\r\n%s\r\n0\r\n\r\n" % (len(ANSWER), ANSWER)


@asynccontextmanager
async def hostile(*replies: bytes, more: bytes = b"", listing: bytes = MODELS) -> AsyncIterator[OpenAIEngine]:
    """An engine at a server that answers each generation with the next of `replies`, then `more` without end."""
    left = list(replies)
    serving: set[asyncio.Task[object] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(listing), listing))
                    continue
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                writer.write(left.pop(0))
                while more:
                    writer.write(more)
                    await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    engine = OpenAIEngine(OpenAISettings(name="served", model="m", urls=(url,)), openai.PROFILE)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0)  # which closes its connections
        server.close()
        await asyncio.gather(*(task for task in serving if task is not None))


@pytest.mark.parametrize("second", [WHOLE.replace(b"llo", b"LL!"), HEAD + b"5\r\n", b"junk"])
async def test_a_second_answer_to_one_request_is_nobodys(second: bytes) -> None:
    async with hostile(WHOLE + second, WHOLE) as engine:
        assert texts(await collect(engine, request())) == "hello"
        assert texts(await collect(engine, request())) == "hello"


@pytest.mark.parametrize(
    "reply",
    [
        b"", b"\x16\x03\x01", ANSWER, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"zz\r\n", HEAD + b"-5\r\n", HEAD.replace(b"Transfer", b"Content-Length: 5\r\nTransfer"),
        b"HTTP/1.1 99999 X\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + b"5\r\nhello\r\n",
    ],
    ids=lambda reply: repr(reply[:24]),
)  # fmt: skip
async def test_what_is_no_answer_is_the_engines_error(reply: bytes) -> None:
    async with hostile(reply + (b"" if reply else b"\0")) as engine:
        with pytest.raises(EngineError):
            await asyncio.wait_for(collect(engine, request()), 30)


@pytest.mark.parametrize(
    ("reply", "more"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\na: ", b"b" * 1000),
        (b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n", b"2710\r\n" + b"x" * 10_000 + b"\r\n"),
        (HEAD.replace(b"text/event-stream", b"application/json"), b"2710\r\n" + b" " * 10_000 + b"\r\n"),
        (HEAD, b"2710\r\n" + b"x" * 10_000 + b"\r\n"),
    ],
    ids=["100 Continue", "headers", "a header", "an error", "a JSON answer", "an event"],
)
async def test_what_has_no_end_is_cut(monkeypatch: pytest.MonkeyPatch, reply: bytes, more: bytes) -> None:
    monkeypatch.setattr(http_client, "MAX_WHOLE_BYTES", 200_000)
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 200_000)
    async with hostile(reply, more=more) as engine:
        with pytest.raises(EngineError):
            await asyncio.wait_for(collect(engine, request()), 30)


async def test_a_server_that_says_nonsense_of_itself_is_there_all_the_same() -> None:
    async with hostile(listing=b"[" * 100_000) as engine:
        assert (await engine.health()).ready


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\noops",
        b"HTTP/1.1 401 X\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 429 X\r\nContent-Length: 4\r\n\r\nfull",
        HEAD + b"zz\r\n",
        b"junk",
    ],
)
async def test_clients_are_told_the_engine_and_operators_where_it_is(reply: bytes) -> None:
    async with hostile(reply) as engine:
        with pytest.raises(LLMInferenceError) as caught:
            await collect(engine, request())
    error = caught.value
    assert "the engine 'openai'" in error.message
    assert "127.0.0.1" not in error.message
    assert "http://127.0.0.1:" in (error.detail or "")


async def test_a_server_that_is_not_there_is_named_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as unused, socket.socket() as unused_too:
        urls = []
        for one in (unused, unused_too):
            one.bind(("127.0.0.1", 0))
            urls.append(f"http://user:secret@127.0.0.1:{one.getsockname()[1]}")
        upstream = Upstream(urls, name="vllm")
        await upstream.open()
        with caplog.at_level(logging.WARNING), pytest.raises(NotReadyError) as caught:
            async for _ in upstream.stream("/x", {}, request_id="r"):
                pass
        with pytest.raises(NotReadyError, match=r"^the engine 'vllm' does not answer$") as asked:
            await upstream.ask(urls[0])
        await upstream.close()
    assert caught.value.message == "the engine 'vllm' cannot be reached"
    shown = [url.replace("user:secret@", "") for url in urls]
    assert (caught.value.detail or "").startswith(shown[1])
    assert (asked.value.detail or "").startswith(f"{shown[0]} does not answer: ")
    for url, line in zip(shown, caplog.messages, strict=True):
        assert line.startswith(f"the engine 'vllm' at {url} is left alone for 2 s: ")
