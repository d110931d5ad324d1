"""A small program that behaves as an engine's server does: slow to be ready, dying at start, dying under load."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters import managed, openai_http
from llm_inference.adapters.launch import Advice, Launch, Plan
from llm_inference.adapters.managed import ManagedEngine, open_engine
from llm_inference.adapters.ollama import PROFILE
from llm_inference.adapters.openai import create as create_openai
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.errors import ConfigError, EngineError, NotReadyError, StartupError, UnsupportedModelError
from tests.adapters.upstream_server import collect, request, texts

SERVER = """#!{python}
import asyncio, os, sys
from aiohttp import web
if "--help" in sys.argv:
    print("usage: [--port N] [--mode MODE]"); sys.exit()
port, mode = int(sys.argv[sys.argv.index("--port") + 1]), sys.argv[sys.argv.index("--mode") + 1]
if mode == "die":
    print("CUDA out of memory", file=sys.stderr); sys.exit(3)
if mode == "family":
    import subprocess
    print("grandchild", subprocess.Popen(["sleep", "60"], start_new_session=True).pid, flush=True)
polls = 0
async def health(request):
    global polls
    polls += 1
    return web.Response(status=200 if polls > 1 and mode != "never" else 503)
async def models(request):
    return web.json_response({{"data": [{{"id": "m"}}]}})
async def chat(request):
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    await response.prepare(request)
    await response.write(b'data: {{"choices": [{{"delta": {{"content": "Hi"}}}}]}}\\n\\n')
    if mode == "hang":
        await asyncio.Event().wait()
    if mode == "slow":
        await asyncio.sleep(0.5)
    await response.write(b'data: {{"choices": [{{"delta": {{}}, "finish_reason": "stop"}}]}}\\n\\ndata: [DONE]\\n\\n')
    return response
marker = sys.argv[0] + ".once"
if mode == "once":
    if os.path.exists(marker):
        print("secret words, out of memory", file=sys.stderr); sys.exit(3)
    open(marker, "w").close()
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

    def make(*, ready_timeout_s: float = 30, **engine_args: Any) -> ManagedEngine:
        launch = Launch(
            program="absent", arguments=arguments, install="it", needs="name", serves_source=True,
            advice=(Advice("out of memory", "take less"),), ready_timeout_s=ready_timeout_s,
        )  # fmt: skip
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


async def test_a_server_that_never_gets_ready_is_given_up(opened: Callable[..., ManagedEngine]) -> None:
    engine = opened(mode="never", ready_timeout_s=1.5)
    with pytest.raises(StartupError, match="was not ready after"):
        await engine.start()
    assert engine.pid is None


async def test_a_server_that_hangs_shows_it(
    opened: Callable[..., ManagedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once it is not ready, in a while it stands still; nothing is left behind."""
    monkeypatch.setattr(openai_http, "HEALTH_TIMEOUT_S", 0.2)
    engine = opened(mode="hang")
    await engine.start()
    pid = engine.pid
    assert pid is not None
    generator = engine.generate(request())
    assert (await anext(generator)).text == "Hi"
    os.kill(pid, signal.SIGSTOP)
    health = await engine.health()
    assert (health.live, health.ready, health.progressing) == (True, False, True)
    monkeypatch.setattr(managed, "STALLED_AFTER_S", 0.1)
    health = await engine.health()
    assert (health.live, health.ready, health.progressing) == (True, False, False)
    assert re.search(r"does not answer, for \d s$", health.reason)
    os.kill(pid, signal.SIGCONT)
    monkeypatch.setattr(openai_http, "HEALTH_TIMEOUT_S", 5.0)
    assert (await engine.health()).ready
    os.kill(pid, signal.SIGSTOP)
    await generator.aclose()
    await engine.stop(0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_stop_lets_what_runs_finish(opened: Callable[..., ManagedEngine]) -> None:
    engine = opened(mode="slow")
    await engine.start()
    running = asyncio.create_task(collect(engine, request()))  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    await engine.stop(grace_s=10)
    assert texts(await running) == "Hi"


async def test_a_server_takes_its_own_children_with_it(
    opened: Callable[..., ManagedEngine], caplog: pytest.LogCaptureFixture
) -> None:
    """Also those that left its process group, as workers of large engines do."""
    caplog.set_level("DEBUG", logger="llm_inference.adapters.managed")
    engine = opened(mode="family")
    await engine.start()
    [line] = [record.getMessage() for record in caplog.records if "grandchild" in record.getMessage()]
    grandchild = int(line.rsplit(" ", 1)[1])
    os.kill(grandchild, 0)
    await engine.stop(0)
    deadline = asyncio.get_running_loop().time() + 10
    while Path(f"/proc/{grandchild}/cmdline").exists() and Path(f"/proc/{grandchild}/cmdline").read_bytes():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


async def test_health_says_why_without_the_servers_own_words(opened: Callable[..., ManagedEngine]) -> None:
    engine = opened(mode="once")
    await engine.start()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    try:
        deadline = asyncio.get_running_loop().time() + 20
        while "exited with 3" not in (health := await engine.health()).reason:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        assert not health.ready
        assert "what helps: take less" in health.reason
        assert "secret words" not in health.reason
    finally:
        await engine.stop(0)


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


async def test_a_command_of_its_own_such_as_a_container_s(tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text(SERVER.format(python=sys.executable))
    container = tmp_path / "docker"  # drops its own words up to the image's name, as docker's client does
    container.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\nwhile [ "$1" != image ]; do shift; done\nshift\n'
                         f'exec {sys.executable} {server} "$@"\n')  # fmt: skip
    container.chmod(0o700)
    launch = Launch(
        program="absent", arguments=lambda plan: ["--port", str(plan.port), "--mode", "plain"], install="it",
        needs="name", serves_source=True,
    )  # fmt: skip
    words = [str(container), "run", "-v", "{model}:{model}:ro", "-p", "{port}", "image"]
    model = ModelConfig(name="n", model="m", engine="ollama", engine_args={"command": words})
    engine = open_engine(model, EngineContext(run_dir=tmp_path), PROFILE, launch)
    await engine.start()
    try:
        assert texts(await collect(engine, request())) == "Hi"  # type: ignore[arg-type]
        port = engine._url.rpartition(":")[2]  # type: ignore[attr-defined]
        asked, started = (tmp_path / "said").read_text().splitlines()
        assert asked == f"run -v m:m:ro -p {port} image --help"
        assert started == f"run -v m:m:ro -p {port} image --port {port} --mode plain"
    finally:
        await engine.stop(1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"command": "docker run"}, "must be a list of words"),
        ({"command": []}, "must be a list of words"),
        ({"command": ["/nowhere/docker", "run"]}, "no program that can be run"),
        ({"command": ["sh"], "program": "sh"}, "keep one"),
    ],
)
def test_wrong_commands(args: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = ModelConfig(name="n", model="m", engine="ollama", engine_args=args)
    launch = Launch(program="absent", arguments=lambda plan: [], install="it", needs="name")
    with pytest.raises(ConfigError, match=message):
        open_engine(model, EngineContext(run_dir=tmp_path), PROFILE, launch)


def test_an_unknown_flag_is_refused_before_launch(opened: Callable[..., ManagedEngine]) -> None:
    with pytest.raises(ConfigError, match=r"engine_args gives --moda, .*nearest that it has is --mode"):
        opened(moda="plain")


def test_urls(tmp_path: Path) -> None:
    context = EngineContext(run_dir=tmp_path)
    with pytest.raises(ConfigError, match="needs `url`"):
        create_openai(ModelConfig(name="n", model="m", engine="openai"), context)
    with pytest.raises(ValueError, match="must begin with http"):
        ModelConfig(name="n", model="m", engine="openai", url="http://a:1, b:2")
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


def test_a_gguf_file_that_we_cannot_convert_goes_to_an_engine_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **keys: Any) -> None:
        raise UnsupportedModelError("no such architecture")

    monkeypatch.setattr(managed, "resolve", fail)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    launch = Launch(program="p", arguments=lambda plan: [], install="it", needs="gguf")
    assert managed._source(ModelConfig(model=str(file)), launch, False) == (str(file), None)
    with pytest.raises(UnsupportedModelError):
        managed._source(ModelConfig(model=str(file)), dataclasses.replace(launch, needs="directory"), False)
    with pytest.raises(UnsupportedModelError):
        managed._source(ModelConfig(model="some/hub-model"), launch, False)


def test_the_context_of_a_server_that_does_not_tell_it_is_that_of_the_files(default_model_dir: Path) -> None:
    engine = managed._engine_at(
        ModelConfig(model="m"), PROFILE, managed.Address("http://127.0.0.1:1", "m", str(default_model_dir))
    )
    assert engine._settings.files_max_model_len == 8192


def test_a_profile_is_a_table() -> None:
    assert dataclasses.replace(PROFILE, name="other").capabilities == PROFILE.capabilities


class _no_limit:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *args: object) -> None: ...
