"""A small program that behaves as an engine's server does: slow to be ready, dying at start, dying under load."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.launch import Advice, Launch, Plan
from llm_inference.adapters.managed import ManagedEngine, open_engine
from llm_inference.adapters.ollama import PROFILE
from llm_inference.adapters.openai import create as create_openai
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.errors import ConfigError, EngineError, NotReadyError, StartupError
from tests.adapters.upstream_server import collect, request, texts

SERVER = """#!{python}
import asyncio, os, sys
from aiohttp import web
if "--help" in sys.argv:
    print("usage: [--port N] [--mode MODE]"); sys.exit()
port, mode = int(sys.argv[sys.argv.index("--port") + 1]), sys.argv[sys.argv.index("--mode") + 1]
if mode == "die":
    print("CUDA out of memory", file=sys.stderr); sys.exit(3)
polls = 0
async def health(request):
    global polls
    polls += 1
    return web.Response(status=200 if polls > 1 else 503)
async def models(request):
    return web.json_response({{"data": [{{"id": "m"}}]}})
async def chat(request):
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    await response.prepare(request)
    await response.write(b'data: {{"choices": [{{"delta": {{"content": "Hi"}}}}]}}\\n\\n')
    if mode == "hang":
        await asyncio.Event().wait()
    await response.write(b'data: {{"choices": [{{"delta": {{}}, "finish_reason": "stop"}}]}}\\n\\ndata: [DONE]\\n\\n')
    return response
app = web.Application()
app.add_routes([web.get("/", health), web.get("/v1/models", models), web.post("/v1/chat/completions", chat)])
web.run_app(app, host="127.0.0.1", port=port, print=None)
"""


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., ManagedEngine]:
    program = tmp_path / "server"
    program.write_text(SERVER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def arguments(plan: Plan) -> list[str]:
        return ["--port", str(plan.port), "--mode", "plain"]

    launch = Launch(
        program="absent", arguments=arguments, install="it", needs="name", serves_source=True,
        advice=(Advice("out of memory", "take less"),), ready_timeout_s=30,
    )  # fmt: skip

    def make(**engine_args: Any) -> ManagedEngine:
        model = ModelConfig(name="n", model="m", engine="ollama", engine_args={"program": str(program), **engine_args})
        engine = open_engine(model, EngineContext(run_dir=tmp_path), PROFILE, launch)
        assert isinstance(engine, ManagedEngine)
        return engine

    return make


async def test_started_answers_and_leaves_nothing_behind(opened: Callable[..., ManagedEngine], tmp_path: Path) -> None:
    engine = opened()
    with pytest.raises(NotReadyError, match="stopped"):
        await collect(engine, request())  # type: ignore[arg-type]
    await engine.start()
    pid = engine.pid
    assert pid is not None
    try:
        assert texts(await collect(engine, request())) == "Hi"  # type: ignore[arg-type]
        assert (await engine.health()).ready
        model = ModelConfig(name="n", model="m", engine="ollama")
        context = EngineContext(run_dir=tmp_path, owns_core=False)
        attached = open_engine(model, context, PROFILE, Launch(program="x", arguments=lambda plan: [], install="it"))
        await attached.start()
        assert texts(await collect(attached, request())) == "Hi"  # type: ignore[arg-type]
        await attached.stop(0)
    finally:
        await engine.stop(1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_server_that_dies_at_start_says_why_and_what_helps(opened: Callable[..., ManagedEngine]) -> None:
    with pytest.raises(StartupError, match=r"exited with 3(.|\n)*CUDA out of memory(.|\n)*What helps: take less"):
        await opened(mode="die").start()


async def test_a_server_that_dies_under_load_fails_its_requests_once_and_comes_back(
    opened: Callable[..., ManagedEngine],
) -> None:
    engine = opened(mode="hang")
    await engine.start()
    try:
        generator = engine.generate(request())
        assert (await anext(generator)).text == "Hi"
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineError):
            await anext(generator)
        async with asyncio.timeout(20) if sys.version_info >= (3, 11) else _no_limit():
            while engine.stats().num_restarts == 0 or not (await engine.health()).ready:
                await asyncio.sleep(0.02)
        again = engine.generate(request())
        assert (await anext(again)).text == "Hi"
        await again.aclose()
    finally:
        await engine.stop(0)


def test_an_unknown_flag_is_refused_before_launch(opened: Callable[..., ManagedEngine]) -> None:
    with pytest.raises(ConfigError, match=r"engine_args gives --moda, .*nearest that it has is --mode"):
        opened(moda="plain")


def test_urls(tmp_path: Path) -> None:
    context = EngineContext(run_dir=tmp_path)
    with pytest.raises(ConfigError, match="needs `url`"):
        create_openai(ModelConfig(name="n", model="m", engine="openai"), context)
    with pytest.raises(ConfigError, match="separated by commas"):
        create_openai(ModelConfig(name="n", model="m", engine="openai", url="http://a:1, b:2"), context)
    with pytest.raises(ConfigError, match="quantization: has no effect"):
        create_openai(ModelConfig(name="n", model="m", engine="openai", url="http://a:1", quantization="awq"), context)
    with pytest.raises(ConfigError, match="did you mean 'top_k'"):
        create_openai(
            ModelConfig(name="n", model="m", engine="openai", url="http://a:1", engine_args={"fields": ["topk"]}),
            context,
        )
    model = ModelConfig(
        name="n", model="m", engine="openai", url="http://a:1,http://b:2", engine_args={"fields": ["top_k"]}
    )
    engine = engine_factory("openai")(model, context)
    assert engine.capabilities.support("top_k") == "enforced"
    assert engine.capabilities.support("min_p") == "refused"


def test_a_profile_is_a_table() -> None:
    assert dataclasses.replace(PROFILE, name="other").capabilities == PROFILE.capabilities


class _no_limit:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *args: object) -> None: ...
