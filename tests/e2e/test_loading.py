"""A model that is loaded when it is asked for: the real engine, killed while it loads, unloaded when nobody uses it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llm_inference.adapters.installs import EngineStore
from llm_inference.adapters.recipes import RECIPES
from llm_inference.config.schema import DEFAULT_MODEL
from tests.e2e.server import RunningServer, is_alive, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MODEL = "SmolLM2-135M-Instruct"
ADMIN = {"authorization": "Bearer admin-key"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    config = tmp_path / "config.json"
    keys = [{"name": "admin", "key": "admin-key", "routes": ["inference", "models", "admin"]}]
    models = [
        {"name": "echo", "model": "any", "engine": "fake"},
        {
            "lazy": True,
            "idle_unload_s": 2.0,
            "memory": "1GiB",
            "max_model_len": 256,
            "max_num_seqs": 4,
            "warmup": False,
        },
    ]
    config.write_text(
        json.dumps({"api": {"keys": keys, "shutdown_grace_s": 2}, "loading": {"retry_s": 1.0}, "models": models})
    )
    with running_server(["--config", str(config)]) as running:
        yield running


def cores(server: RunningServer) -> list[int]:
    found = []
    for pid in server.children():
        try:
            if b"llm_inference.native.server" in Path(f"/proc/{pid}/cmdline").read_bytes() and is_alive(pid):
                found.append(pid)
        except OSError:
            continue
    return found


async def asked(session: aiohttp.ClientSession, server: RunningServer) -> tuple[int, Any, str]:
    body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8}
    async with session.post(f"{server.base_url}/completions", json=body, headers=ADMIN) as reply:
        return reply.status, await reply.json(), reply.headers.get("retry-after", "")


async def replica(session: aiohttp.ClientSession, server: RunningServer) -> dict[str, Any]:
    async with session.get(f"{server.base_url}/admin/models", headers=ADMIN) as reply:
        models = {model["name"]: model for model in (await reply.json())["models"]}
    return dict(models[MODEL]["replicas"][0])


async def core_of(server: RunningServer) -> int:
    deadline = time.monotonic() + 60
    while not (found := cores(server)):
        assert time.monotonic() < deadline, server.log
        await asyncio.sleep(0.01)
    return found[0]


async def test_killed_while_it_loads_then_loaded_once_then_unloaded(server: RunningServer) -> None:
    async with aiohttp.ClientSession() as session:
        assert cores(server) == []
        asking = [asyncio.create_task(asked(session, server)) for _ in range(5)]
        os.kill(await core_of(server), signal.SIGKILL)
        for status, reply, retry_after in await asyncio.gather(*asking):
            assert (status, reply["error"]["code"], retry_after) == (503, "model_load_failed", "1")
            assert "was killed by SIGKILL" in reply["error"]["message"]
        seen = await replica(session, server)
        assert (seen["state"], seen["ready"]) == ("unloaded", False)
        assert "SIGKILL" in seen["reason"]
        status, reply, _ = await asked(session, server)
        assert (status, reply["error"]["code"]) == (503, "model_load_failed")
        await asyncio.sleep(1.1)

        asking = [asyncio.create_task(asked(session, server)) for _ in range(5)]
        await core_of(server)
        assert (await replica(session, server))["state"] == "loading"
        for status, reply, _ in await asyncio.gather(*asking):
            assert status == 200, reply
            assert "Paris" in reply["choices"][0]["text"]
        assert len(cores(server)) == 1
        seen = await replica(session, server)
        assert (seen["state"], seen["memory_bytes"]) == ("loaded", 2**30)
        assert seen["resident_bytes"] > 100 * 2**20

        for _ in range(200):
            if not cores(server):
                break
            await asyncio.sleep(0.1)
        assert cores(server) == [], server.log
        status, reply, _ = await asked(session, server)
        assert "Paris" in reply["choices"][0]["text"]


async def test_the_server_is_stopped_while_it_loads(server: RunningServer) -> None:
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(asked(session, server))
        core = await core_of(server)
        assert await asyncio.to_thread(server.stop) == 0
        assert not is_alive(core)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_workers_keep_nothing_of_an_engine_that_was_replaced(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    keys = [{"name": "admin", "key": "admin-key", "routes": ["inference", "models", "admin"]}]
    model = {"lazy": True, "max_model_len": 256, "max_num_seqs": 2, "warmup": False, "kv_cache_memory": "64MiB"}
    config.write_text(json.dumps({"api": {"keys": keys, "workers": 2, "shutdown_grace_s": 2}, "models": [model]}))
    with running_server(["--config", str(config)]) as server:
        workers = [pid for pid in server.children() if b"serve.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 2
        num_threads = []
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.post(
                    f"{server.base_url}/admin/models/restart", json={"model": MODEL}, headers=ADMIN
                ) as reply:
                    assert reply.status == 200, await reply.text()
                await asyncio.sleep(1.0)  # what is closed ends in threads of its own
                num_threads.append([len(os.listdir(f"/proc/{pid}/task")) for pid in workers])
        assert num_threads[2] == num_threads[1]
    assert "waiting for it to come back" not in server.log


@pytest.mark.skipif(EngineStore.default().find(RECIPES["llama.cpp"]) is None, reason="llama.cpp is not installed")
async def test_an_engine_that_is_managed_here_over_two_workers(tmp_path: Path) -> None:
    model = {"name": MODEL, "engine": "llama.cpp", "model": DEFAULT_MODEL, "lazy": True, "idle_unload_s": 1.0}
    config = tmp_path / "config.json"
    keys = [{"name": "admin", "key": "admin-key", "routes": ["inference", "models", "admin"]}]
    api = {"keys": keys, "workers": 2, "shutdown_grace_s": 2}
    model |= {"max_model_len": 256, "max_num_seqs": 2, "warmup": False}
    config.write_text(json.dumps({"api": api, "models": [model]}))
    with running_server(["--config", str(config)]) as server:
        for _ in range(2):
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                for status, reply, _ in await asyncio.gather(*(asked(session, server) for _ in range(4))):
                    assert status == 200, reply
                    assert "Paris" in reply["choices"][0]["text"]
                for _ in range(300):
                    if (await replica(session, server))["state"] == "unloaded":
                        break
                    await asyncio.sleep(0.1)
                assert (await replica(session, server))["state"] == "unloaded"
        assert server.log.count("loading SmolLM2") == 2
