from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters import generate_http
from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    LLMInferenceError,
    NotReadyError,
    OverloadedError,
)
from tests.adapters.replay import Reply, drain, event_stream, json_reply, many_cuts, replaying

EVENTS = b'data: {"n": 1}\n\ndata: {"n": 2}\n\n'


@asynccontextmanager
async def opened(url: str, key: str | None = None) -> AsyncGenerator[HttpBackend, None]:
    backend = HttpBackend("some-engine", url, key)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def values(backend: HttpBackend, path: str = "/generate", framing: Any = "sse") -> list[Any]:
    return [value async for value in backend.post(path, {"a": 1}, framing)]


async def test_streams_over_a_socket_in_many_pieces() -> None:
    replies = [event_stream(b"", chunks=chunks) for chunks in many_cuts(EVENTS, times=10)]
    async with replaying({"/generate": replies}) as server, opened(server.url + "/", "secret") as backend:
        for _ in replies:
            assert await values(backend) == [{"n": 1}, {"n": 2}]
        assert server.received[0].headers["authorization"] == "Bearer secret"
        assert server.bodies("/generate")[0] == {"a": 1}


async def test_one_value_answers_a_call_for_events() -> None:
    async with replaying({"/generate": json_reply({"n": 1})}) as server, opened(server.url) as backend:
        assert await values(backend) == [{"n": 1}]
        assert await values(backend, framing="json") == [{"n": 1}]
        assert "authorization" not in server.received[0].headers


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, '{"error": "bad"}', InvalidRequestError, "bad"),
        (417, '{"message": "need 0 < n"}', InvalidRequestError, "need 0 < n"),
        (400, "plain words", InvalidRequestError, "plain words"),
        (400, "", InvalidRequestError, "empty body"),
        (400, '{"error": {"message": "exceeds the context length of 10"}}', ContextLengthError, "context length"),
        (401, '{"error": "Unauthorized"}', EngineError, "api_key"),
        (404, '{"error": "model not found"}', EngineError, "Check `model`"),
        (424, '{"error": "Request failed"}', EngineError, "Request failed"),
        (429, '{"error": "Model is overloaded"}', OverloadedError, "Model is overloaded"),
        (503, "", OverloadedError, "some-engine"),
        (502, "", NotReadyError, "some-engine"),
        (500, '{"error": "boom"}', EngineError, "boom"),
    ],
)
async def test_what_a_status_means(status: int, body: str, kind: type[LLMInferenceError], words: str) -> None:
    reply = Reply(body.encode(), status)
    async with replaying({"/generate": reply}) as server, opened(server.url) as backend:
        with pytest.raises(LLMInferenceError) as caught:
            await values(backend)
        assert type(caught.value) is kind
        assert words in caught.value.message


async def test_the_recorded_validation_error(shared_dir: Path) -> None:
    path = shared_dir / "fixtures" / "tgi_recorded" / "test_async_generate_validation_error.json"
    [exchange] = json.loads(path.read_text())["interactions"]
    reply = Reply(exchange["response_body"].encode(), exchange["status"])
    async with replaying({"/generate": reply}) as server, opened(server.url) as backend:
        with pytest.raises(ContextLengthError, match="must be <= 1024"):
            await values(backend)


async def test_retry_after_is_passed_on() -> None:
    replies = [json_reply({}, 429, headers={"Retry-After": "7"}), json_reply({}, 503, headers={"Retry-After": "soon"})]
    async with replaying({"/generate": replies}) as server, opened(server.url) as backend:
        for seconds in (7.0, 1.0):
            with pytest.raises(OverloadedError) as caught:
                await values(backend)
            assert caught.value.retry_after_s == seconds


async def test_nobody_is_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with opened(f"http://127.0.0.1:{unused.getsockname()[1]}") as backend:
            with pytest.raises(NotReadyError, match="the engine 'some-engine' does not answer"):
                await values(backend)
            with pytest.raises(NotReadyError, match="the engine 'some-engine' does not answer"):
                await backend.get("/health")


@pytest.mark.parametrize("framing", ["sse", "ndjson", "json"])
async def test_a_connection_that_breaks_in_the_answer(framing: str) -> None:
    reply = Reply(EVENTS if framing == "sse" else b'{"n": 1}\n', content_type="text/plain", end="broken")
    async with replaying({"/generate": reply}) as server, opened(server.url) as backend:
        got: list[Any] = []
        with pytest.raises(EngineError, match="broke off"):
            await drain(backend.post("/generate", {}, framing), got)  # type: ignore[arg-type]
        assert len(got) == {"sse": 2, "ndjson": 1, "json": 0}[framing]


async def test_a_connection_that_closes_without_an_answer() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with opened(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as backend:
        with pytest.raises(EngineError, match="closed the connection"):
            await values(backend)
    server.close()


async def test_closing_the_generator_closes_the_connection() -> None:
    async with replaying({"/generate": event_stream(EVENTS, end="open")}) as server, opened(server.url) as backend:
        async with aclosing(backend.post("/generate", {}, "sse")) as stream:
            assert await anext(stream) == {"n": 1}
        await asyncio.wait_for(server.abandoned.wait(), 30)


async def test_an_error_in_a_200() -> None:
    replies = [json_reply({"error": "boom"}), event_stream(EVENTS + b'data: {"error": "boom"}\n\n')]
    async with replaying({"/generate": replies}) as server, opened(server.url) as backend:
        for _ in replies:
            with pytest.raises(EngineError, match="boom"):
                await values(backend)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    """Prompt and key go where the configuration says, and nowhere else."""
    async with replaying({"/other": event_stream(EVENTS)}) as other:
        away = Reply(b"", status, headers={"Location": f"{other.url}/other"})
        async with replaying({"/generate": away, "/health": away}) as server, opened(server.url, "secret") as backend:
            with pytest.raises(EngineError, match=str(status)):
                await values(backend)
            assert (await backend.get("/health"))[0] == status
        assert other.received == []


async def test_errors_show_clients_no_address_and_nobody_a_password() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with opened(f"http://user:secret@127.0.0.1:{unused.getsockname()[1]}/") as backend:
            with pytest.raises(NotReadyError) as caught:
                await backend.get("/health")
    assert "127.0.0.1" not in caught.value.message
    assert (caught.value.detail or "").startswith("no engine answers at http://127.0.0.1:")
    assert "secret" not in (caught.value.detail or "")


async def test_a_whole_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_http, "MAX_WHOLE_BYTES", 50_000)
    reply = Reply(chunks=[b"x" * 10_000] * 10)
    async with replaying({"/generate": reply, "/health": reply}) as server, opened(server.url) as backend:
        with pytest.raises(EngineError, match="larger than 50000"):
            await values(backend, framing="json")
        with pytest.raises(NotReadyError) as caught:
            await backend.get("/health")
        assert "larger than 50000" in (caught.value.detail or "")
