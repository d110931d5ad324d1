"""A foreign server that says what a test tells it to, byte for byte, cut where the test wants it cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from llm_inference.adapters.openai_http import OpenAIEngine, OpenAISettings
from llm_inference.adapters.profile import Profile
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, Prompt, SamplingParams

CHAT = ChatPrompt(messages=({"role": "user", "content": "hello"},))


@dataclass
class Script:
    """The reply to every generation. `die`: drop the connection after the pieces; `hang`: say nothing more."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    die: bool = False
    hang: bool = False
    reply: Callable[[dict[str, Any]], Sequence[bytes]] | None = None
    models: Any = None
    models_status: int = 200
    health_status: int = 200


@dataclass
class ForeignServer:
    url: str
    script: Script
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_open: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[Any] = field(default_factory=set)


@asynccontextmanager
async def foreign(script: Script) -> AsyncIterator[ForeignServer]:
    server = ForeignServer("", script)

    async def generate(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        server.bodies.append(body)
        server.headers.append({name.lower(): value for name, value in request.headers.items()})
        server.connections.add(request.transport)
        response = web.StreamResponse(status=script.status, headers=script.headers)
        response.content_type = script.content_type
        server.num_open += 1
        try:
            await response.prepare(request)
            pieces = script.reply(body) if script.reply is not None else script.pieces
            for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0)
            if script.die:
                assert request.transport is not None
                request.transport.abort()
            if script.hang:
                await asyncio.Event().wait()
            return response
        finally:
            server.num_open -= 1
            server.closed.set()

    async def models(request: web.Request) -> web.Response:
        listing = {"object": "list", "data": [{"id": "m", "max_model_len": 64}]}
        return web.json_response(listing if script.models is None else script.models, status=script.models_status)

    async def tokenize(request: web.Request) -> web.Response:
        server.bodies.append(await request.json())
        return web.json_response({"tokens": [1, 2], "count": 2, "max_model_len": 64})

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=script.health_status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", generate)
    app.router.add_post("/v1/completions", generate)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def engine_at(profile: Profile, *servers: ForeignServer, **more: Any) -> AsyncIterator[OpenAIEngine]:
    tokenizer = more.pop("tokenizer", None)
    settings = OpenAISettings(
        name="served", model="m", urls=tuple(server.url for server in servers), engine=profile.name, **more
    )
    engine = OpenAIEngine(settings, profile, tokenizer)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0)


def request(prompt: Prompt = CHAT, **sampling: Any) -> GenerateRequest:
    fields = {key: sampling.pop(key) for key in list(sampling) if key not in SamplingParams.__struct_fields__}
    return GenerateRequest(
        request_id="r-1", model="served", prompt=prompt, sampling=SamplingParams(**sampling), **fields
    )


async def collect(engine: OpenAIEngine, work: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(work)]


def sse(*chunks: Any, done: bool = True, space: str = " ") -> bytes:
    """Chunks as a server frames them; a chunk that is bytes stands as it is."""
    out = b"".join(
        chunk if isinstance(chunk, bytes) else f"data:{space}{json.dumps(chunk)}\n\n".encode() for chunk in chunks
    )
    return out + (f"data:{space}[DONE]\n\n".encode() if done else b"")


def said(text: str | None = None, finish: Any = None, index: int | None = 0, **delta: Any) -> dict[str, Any]:
    """One chat chunk of one choice."""
    choice: dict[str, Any] = {
        "delta": {**({} if text is None else {"content": text}), **delta},
        "finish_reason": finish,
    }
    if index is not None:
        choice["index"] = index
    return {"id": "", "choices": [choice]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def texts(deltas: Sequence[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)


def ends(deltas: Sequence[Delta]) -> dict[int, Any]:
    """Index → finish reason; fails where one ends twice, or goes on after its end."""
    found: dict[int, Any] = {}
    for delta in deltas:
        assert delta.index not in found, "a choice goes on after its end"
        if delta.finish_reason is not None:
            found[delta.index] = delta.finish_reason
    return found
