"""Two replicas in a real Ray cluster on this machine: answers, a replica killed under load, a rolling update."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import uvicorn
from prometheus_client import CollectorRegistry

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.errors import ContextLengthError
from llm_inference.gateway.app import create_app
from llm_inference.gateway.settings import GatewaySettings
from tests.gateway.serving import _Server

pytestmark = [
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
    # Ray's own modules and its sockets at exit; ours are tested without it.
    pytest.mark.filterwarnings("default"),
]
REPLICAS = 2
TEXT = "one two three four five six seven eight nine ten"


def model(**more: Any) -> ModelConfig:
    ray = {"engine": "fake", "replicas": REPLICAS, "num_cpus": 0.1, "max_ongoing_requests": 32}
    keys: dict[str, Any] = {"name": "m", "engine": "ray", "ray": ray, "engine_args": {"delay_s": 0.02}}
    return ModelConfig.model_validate({**keys, **more})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Engine, None]:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed: make test-ray")
    import ray

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    engine = engine_factory("ray")(model(), EngineContext(run_dir=tmp_path_factory.mktemp("run")))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(grace_s=1)
        await asyncio.to_thread(ray.shutdown)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(engine: Engine) -> AsyncGenerator[str, None]:
    app = create_app({"m": engine}, GatewaySettings(), registry=CollectorRegistry())
    server = _Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


def replica_pids() -> set[int]:
    """Processes that Ray calls a replica of this application."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ServeReplica:llm-inference-m:" in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


async def streamed(session: aiohttp.ClientSession, url: str) -> tuple[str, list[str]]:
    """The text of a streamed completion, and how it ended: finish reasons, errors and `[DONE]`, in order."""
    body = {"model": "m", "prompt": TEXT, "stream": True}
    text, ends = "", []
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        if reply.status != 200:
            return "", [f"status {reply.status}"]
        async for line in reply.content:
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                ends.append("[DONE]")
            elif data.startswith(b"{"):
                chunk = json.loads(data)
                if "error" in chunk:
                    ends.append("error")
                    continue
                for choice in chunk["choices"]:
                    text += choice["text"]
                    if choice["finish_reason"]:
                        ends.append(choice["finish_reason"])
    return text, ends


async def test_it_streams_what_the_engine_says(engine: Engine, url: str) -> None:
    async with aiohttp.ClientSession() as session:
        assert await streamed(session, url) == (TEXT, ["stop", "[DONE]"])
    assert (await engine.health()).ready
    assert engine.info.engine == "fake"


async def test_errors_of_a_replica_keep_their_class(engine: Engine) -> None:
    request = GenerateRequest(request_id="long", model="m", prompt="x" * 5000)
    with pytest.raises(ContextLengthError):
        async for _ in engine.generate(request):
            pass


async def test_closing_the_stream_frees_the_replica(engine: Engine) -> None:
    sampling = SamplingParams(max_tokens=3000, ignore_eos=True)
    for number in range(40):  # more than the replicas take at once, if any of them stayed
        request = GenerateRequest(request_id=f"c{number}", model="m", prompt="abc" * 50, sampling=sampling)
        stream = engine.generate(request)
        async for _ in stream:
            break
        await stream.aclose()
    request = GenerateRequest(request_id="after", model="m", prompt="abc")
    text = "".join([delta.text async for delta in engine.generate(request)])
    assert text == "abc"


async def test_an_update_replaces_replicas_and_drops_no_stream(engine: Engine, url: str) -> None:
    from llm_inference.adapters.ray.deployment import deploy

    before = replica_pids()
    assert len(before) == REPLICAS
    async with aiohttp.ClientSession() as session:
        running = [asyncio.create_task(streamed(session, url)) for _ in range(16)]
        await asyncio.sleep(0.2)
        update = asyncio.create_task(asyncio.to_thread(deploy, model(engine_args={"delay_s": 0.01}), "info"))
        while not update.done():
            running.append(asyncio.create_task(streamed(session, url)))
            await asyncio.sleep(0.1)
        await update
        answers = await asyncio.gather(*running)
    assert all(answer == (TEXT, ["stop", "[DONE]"]) for answer in answers), answers
    assert not before & replica_pids()


async def test_a_replica_killed_under_load(engine: Engine, url: str) -> None:
    async with aiohttp.ClientSession() as session:
        running = [asyncio.create_task(streamed(session, url)) for _ in range(24)]
        await asyncio.sleep(0.2)
        os.kill(min(replica_pids()), signal.SIGKILL)
        more = [asyncio.create_task(streamed(session, url)) for _ in range(24)]
        answers = await asyncio.gather(*running, *more)
        ends = [tuple(ends) for _, ends in answers]
        # Each ends in exactly one way: whole, or with an error where its replica had begun to answer.
        assert set(ends) <= {("stop", "[DONE]"), ("error",)}, set(ends)
        assert ends.count(("stop", "[DONE]")) >= 24
        assert all(text == TEXT for text, how in answers if how == ["stop", "[DONE]"])
        for _ in range(300):
            if len(replica_pids()) == REPLICAS:
                break
            await asyncio.sleep(0.1)
        after = await asyncio.gather(*(streamed(session, url) for _ in range(24)))
    assert len(replica_pids()) == REPLICAS
    assert all(answer == (TEXT, ["stop", "[DONE]"]) for answer in after)
