from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from llm_inference.cli.conversation import connect, normalise_url
from llm_inference.cli.loop_thread import LoopThread
from llm_inference.engine.types import SamplingParams
from llm_inference.errors import AuthenticationError, EngineError, LLMInferenceError, ServiceError
from tests.cli.conftest import Invoke


class Peer:
    """A small OpenAI-compatible server: answers with what was asked, byte by byte."""

    def __init__(self, models: tuple[str, ...] = ("m",), key: str | None = None, tail: bytes | None = None) -> None:
        self.bodies: list[dict[str, object]] = []
        self._models = models
        self._key = key
        self._tail = tail

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    async def models(self, request: web.Request) -> web.Response:
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response({"error": {"message": "no valid key"}}, status=401)
        return web.json_response({"data": [{"id": name} for name in self._models]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        if text == "refuse":
            return web.json_response({"error": {"message": "too long"}}, status=400)
        response = web.StreamResponse()
        await response.prepare(request)
        deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}]
        deltas += [{"content": char} for char in text]
        frames = b"".join(
            b"data: "
            + json.dumps({"choices": [{"index": 0, "delta": delta}]}, ensure_ascii=False).encode()
            + b"\r\n\r\n"
            for delta in deltas
        )
        end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n: ping\n\n'
        usage = b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\ndata: [DONE]\n\n'
        for byte in frames + (end + usage if self._tail is None else self._tail):
            await response.write(bytes([byte]))
        return response


@asynccontextmanager
async def running(peer: Peer) -> AsyncIterator[str]:
    async with TestServer(peer.app()) as server:
        yield str(server.make_url("/"))


async def ask(url: str, text: str, **options: str) -> tuple[str, str, list[str]]:
    parts, reasoning, ends = "", "", []
    async with connect(url, **options) as talker:
        async for delta in talker.reply([{"role": "user", "content": text}], SamplingParams(max_tokens=7, seed=3)):
            parts += delta.text
            reasoning += delta.reasoning
            ends += [delta.finish_reason] if delta.finish_reason else []
    return parts, reasoning, ends


async def test_a_streamed_answer_comes_whole() -> None:
    peer = Peer()
    async with running(peer) as url:
        assert await ask(url, "héllo 日本 😀") == ("héllo 日本 😀", "hm", ["length"])
    (body,) = peer.bodies
    assert (body["model"], body["stream"], body["max_tokens"], body["seed"]) == ("m", True, 7, 3)
    assert "temperature" not in body


async def test_the_key_is_sent_and_its_absence_told() -> None:
    async with running(Peer(key="k")) as url:
        assert (await ask(url, "hi", api_key="k"))[0] == "hi"
        with pytest.raises(AuthenticationError, match=r"401: no valid key \(give the key with --api-key\)"):
            await ask(url, "hi")


async def test_several_models_need_a_choice() -> None:
    async with running(Peer(models=("a", "b"))) as url:
        assert (await ask(url, "hi", model="b"))[0] == "hi"
        with pytest.raises(ServiceError, match="serves several models; say which: a, b"):
            await ask(url, "hi")


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b'data: {"error": {"message": "core died"}}\n\n', "the server failed: core died"),
        (b'data: {"error": "Unauthorized"}\n\n', "the server failed: Unauthorized"),
        (b"data: {oops\n\n", "no JSON"),
        (b"data: " + b"[" * 9000 + b"\n\n", "no JSON"),
        (b"data: null\n\n", "no chunk"),
        (b'data: {"choices": 5}\n\n', "no chunk"),
        (b'data: {"choices": ["text"]}\n\n', "no chunk"),
        (b'data: {"choices": [{"delta": ["x"]}]}\n\n', "no chunk"),
        (b"", "closed the stream before its end"),
    ],
)
async def test_a_broken_stream_is_an_error(tail: bytes, message: str) -> None:
    async with running(Peer(tail=tail)) as url:
        with pytest.raises(EngineError, match=message):
            await ask(url, "hi")


async def test_refusals_and_strangers() -> None:
    async with running(Peer()) as url:
        with pytest.raises(ServiceError, match="the server answered 400: too long"):
            await ask(url, "refuse")
        with pytest.raises(ServiceError, match="the server answered 404"):
            await ask(f"{url}other", "hi")
    with pytest.raises(ServiceError, match="cannot reach"):
        await ask(url, "hi")


def test_urls_are_completed() -> None:
    assert normalise_url("127.0.0.1:8000") == "http://127.0.0.1:8000/v1"
    assert normalise_url("https://h/") == "https://h/v1"
    assert normalise_url("https://h/api/v2/") == "https://h/api/v2"
    with pytest.raises(LLMInferenceError, match="is no address of a server"):
        normalise_url("ftp://h")


@pytest.fixture
def peer_url() -> Iterator[str]:
    with LoopThread() as loop, loop.entered(running(Peer())) as url:
        yield url


def test_chat_with_a_running_server(peer_url: str, invoke: Invoke) -> None:
    code, out, err = invoke("chat", "--url", peer_url, stdin="one\nrefuse\ntwo\n")
    assert (code, out) == (1, "one\ntwo\n")
    assert "error: the server answered 400: too long\n" in err
