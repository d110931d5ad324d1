"""A real server on a free port, in the test's own event loop, and a client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from llm_inference.engine.base import Engine
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.gateway.app import create_app
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.telemetry.tracing import Tracing

MESSAGES = [{"role": "user", "content": "hello"}]


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are pytest's


@dataclass(slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text, parse_constant=_no_constant)

    @property
    def error(self) -> dict[str, Any]:
        body = self.json
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return dict(body["error"])

    @property
    def events(self) -> list[Any]:
        """The data of every SSE frame; `[DONE]` as that string."""
        assert self.headers["content-type"].startswith("text/event-stream"), self.text
        frames = [frame for frame in self.text.split("\n\n") if frame]
        assert all(frame.startswith("data: ") for frame in frames)
        return [data if (data := frame[6:]) == "[DONE]" else json.loads(data) for frame in frames]


@dataclass(slots=True)
class Service:
    app: FastAPI
    engine: FakeEngine
    port: int
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def request(self, method: str, path: str, **kwargs: Any) -> Reply:
        async with self.session.request(method, self.url + path, **kwargs) as response:
            return Reply(response.status, response.headers, await response.text())

    async def get(self, path: str, **kwargs: Any) -> Reply:
        return await self.request("GET", path, **kwargs)

    async def post(self, path: str, body: Any, **kwargs: Any) -> Reply:
        return await self.request("POST", path, json=body, **kwargs)

    async def chat(self, **fields: Any) -> Reply:
        return await self.post("/v1/chat/completions", {"model": "fake", "messages": MESSAGES, **fields})

    async def complete(self, **fields: Any) -> Reply:
        return await self.post("/v1/completions", {"model": "fake", "prompt": "hello", **fields})

    async def metrics(self) -> str:
        return (await self.get("/metrics")).text

    async def idle(self) -> None:
        """Wait until no request is in flight; fail after half a minute."""
        assert await self.app.state.gateway.wait_idle(30.0)


@asynccontextmanager
async def serving(
    script: FakeScript | None = None,
    *,
    engine: FakeEngine | None = None,
    others: Mapping[str, Engine] | None = None,
    router: Router | None = None,
    tenants: Tenants | None = None,
    tracing: Tracing | None = None,
    **settings: Any,
) -> AsyncIterator[Service]:
    """A gateway over one fake engine (and `others`), or over what is behind `router`, served by uvicorn."""
    engine = engine or FakeEngine("fake", script=script)
    engines: dict[str, Engine] = {engine.info.name: engine, **(others or {})}
    app = create_app(
        router or engines,
        GatewaySettings(**settings),
        registry=CollectorRegistry(),
        tenants=tenants,
        tracing=tracing,
    )
    server = _Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with aiohttp.ClientSession() as session:
            yield Service(app, engine, port, session)
    finally:
        server.should_exit = True
        await task


def official(service: Service) -> openai.AsyncOpenAI:
    """OpenAI's own client for the service."""
    return openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0)


async def until(condition: Any, timeout_s: float = 30.0) -> None:
    """Wait for `condition()` to hold; fail after `timeout_s`."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
