"""An OpenAI-compatible server that does what a script says, with delays that are known. It has no model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Mishap = Literal["truncate", "error_event", "malformed", "not_streamed", "drop", "hang", "http_503", "empty"]


@dataclass(slots=True)
class Script:
    """`usage`: "continuous" needs to be asked for, "final" comes anyway. `mishaps`: request number → what befalls it,
    counted from the first generation request (the probe). `refused`: field → status of the 400-like refusal.
    """

    first_delay_s: float = 0.0
    delay_s: float = 0.0
    tokens_per_chunk: int = 1
    usage: Literal["none", "final", "continuous"] = "continuous"
    num_tokens: int | None = None  # None: as many as max_tokens says
    tokenizer: bool = False
    token_ids: bool = True  # takes prompts of token ids
    models: Any = field(default_factory=lambda: {"data": [{"id": "scripted", "max_model_len": 1000}]})
    models_status: int = 200
    refused: dict[str, str] = field(default_factory=dict)  # field → message
    mishaps: dict[int, Mishap] = field(default_factory=dict)
    key: str | None = None


@dataclass(slots=True)
class Scripted:
    url: str
    script: Script
    bodies: list[dict[str, Any]]
    headers: list[dict[str, str]]


class _Service:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def models(self, request: web.Request) -> web.Response:
        if self.script.key is not None and request.headers.get("authorization") != f"Bearer {self.script.key}":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        return web.json_response(self.script.models, status=self.script.models_status)

    async def tokenize(self, request: web.Request) -> web.Response:
        if not self.script.tokenizer:
            return web.json_response({"error": "no such route"}, status=404)
        return web.json_response({"count": count_words(await request.json()), "max_model_len": 1000})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        script = self.script
        number = len(self.bodies)
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        for name, message in script.refused.items():
            if name in body or name in body.get("stream_options", {}):
                return web.json_response({"error": {"message": message, "code": 400}}, status=400)
        if isinstance(body.get("prompt"), list) and not script.token_ids:
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=422)
        mishap = script.mishaps.get(number)
        if mishap == "http_503":
            return web.json_response({"error": {"message": "full"}}, status=503)
        if mishap == "not_streamed":
            return web.json_response({"choices": [{"text": "all at once"}]})
        if mishap == "hang":
            await asyncio.sleep(30)
        return await self._stream(request, body, mishap)

    async def _stream(self, request: web.Request, body: dict[str, Any], mishap: Mishap | None) -> web.StreamResponse:
        script = self.script
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        total = body.get("max_tokens", body.get("max_completion_tokens"))
        total = min(total, script.num_tokens or total) if mishap != "empty" else 0
        prompt_tokens = count_words(body)
        continuous = script.usage == "continuous" and body.get("stream_options", {}).get("continuous_usage_stats")
        await asyncio.sleep(script.first_delay_s)
        sent = 0
        while sent < total:
            if sent:
                await asyncio.sleep(script.delay_s)
            new = min(script.tokens_per_chunk, total - sent)
            sent += new
            chunk = {"choices": [{"text": "x" * new, "delta": {"content": "x" * new}, "finish_reason": None}]}
            if continuous:
                chunk["usage"] = usage(prompt_tokens, sent)
            await response.write(frame(chunk))
            if mishap == "drop":
                assert request.transport is not None
                request.transport.abort()
                return response
            if mishap == "error_event":
                await response.write(frame({"error": {"message": "the engine died", "code": "server_error"}}))
                return response
            if mishap == "malformed":
                await response.write(b"data: {not json\n\n")
                return response
            if mishap == "truncate":
                return response
        await response.write(frame({"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]}))
        if script.usage != "none" and body.get("stream_options", {}).get("include_usage"):
            await response.write(frame({"choices": [], "usage": usage(prompt_tokens, sent)}))
        await response.write(b"data: [DONE]\n\n")
        return response


def frame(data: Any) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def count_words(body: dict[str, Any]) -> int:
    """The server's tokenizer: a word or a full stop is a token, a chat's template is five more."""
    if "messages" in body:
        return 5 + sum(count_words({"prompt": message["content"]}) for message in body["messages"])
    prompt = body["prompt"]
    return len(prompt) if isinstance(prompt, list) else len(prompt.split()) + prompt.count(".")


@asynccontextmanager
async def scripted(script: Script | None = None) -> AsyncIterator[Scripted]:
    """The server on a free port, in the test's own loop."""
    service = _Service(script or Script())
    app = web.Application()
    app.router.add_get("/v1/models", service.models)
    app.router.add_post("/tokenize", service.tokenize)
    app.router.add_post("/v1/completions", service.generate)
    app.router.add_post("/v1/chat/completions", service.generate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield Scripted(f"http://127.0.0.1:{port}", service.script, service.bodies, service.headers)
    finally:
        await runner.cleanup()
