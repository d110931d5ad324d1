"""Tiers of a real server: the real model as the golden one, and beside it an "int4" that answers something else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.server import RunningServer, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

KEY = {"authorization": "Bearer admin-key"}
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("tiers")
    agreement = {"sample": 1.0, "threshold": 0.9, "min_samples": 2, "window": 5, "restore_after": 3}
    golden = {"max_model_len": 256, "max_num_seqs": 4, "warmup": False}
    config = {
        "api": {"keys": [{"name": "admin", "key": "admin-key", "routes": ["inference", "models", "admin"]}]},
        "models": [
            {"name": "chat", "tier": "golden", **golden, "routing": {"max_in_flight": 2, "agreement": agreement}},
            {"name": "chat", "tier": "int4", "precision": "int4", "engine": "fake", "model": "bad"},
        ],
    }
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    with running_server(["--config", str(file)]) as running:
        yield running


async def complete(session: aiohttp.ClientSession, server: RunningServer, **fields: Any) -> dict[str, Any]:
    body = {"model": "chat", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    async with session.post(f"{server.base_url}/completions", json=body, headers=KEY) as reply:
        answer: dict[str, Any] = await reply.json()
        assert reply.status == 200, answer
        answer["served_by"] = reply.headers["x-served-by"]
        return answer


async def tier(session: aiohttp.ClientSession, server: RunningServer) -> dict[str, Any]:
    async with session.get(f"{server.base_url}/admin/models", headers=KEY) as reply:
        found: dict[str, Any] = (await reply.json())["models"][0]["tiers"]["int4"]
        return found


async def test_a_full_golden_tier_spills_over_and_says_so(server: RunningServer) -> None:
    async with aiohttp.ClientSession() as session:
        long = [
            asyncio.create_task(complete(session, server, max_tokens=150, ignore_eos=True, service_tier="golden"))
            for _ in range(2)
        ]
        await asyncio.sleep(0.5)
        spilled = await complete(session, server, temperature=1)
        assert (spilled["service_tier"], spilled["served_by"]) == ("int4", "chat:int4")
        for answer in await asyncio.gather(*long):
            assert answer["service_tier"] == "golden"
        back = await complete(session, server)
        assert (back["service_tier"], "Paris" in back["choices"][0]["text"]) == ("golden", True)


async def test_a_bad_tier_is_found_out_demoted_and_restored_by_an_operator(server: RunningServer) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            bad = await complete(session, server, service_tier="int4")
            assert (bad["service_tier"], bad["choices"][0]["text"]) == ("int4", PROMPT[:8])
        deadline = time.monotonic() + 60
        while not (seen := await tier(session, server))["demoted"]:
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.1)
        assert seen["num_samples"] >= 2
        assert seen["agreement"] < 0.5
        assert "tier int4 is demoted" in server.line_with("demoted")
        better = await complete(session, server, service_tier="int4")
        assert (better["service_tier"], better["served_by"]) == ("golden", "chat:golden")
        assert "Paris" in better["choices"][0]["text"]
        async with session.get(f"{server.url}/metrics") as reply:
            figures = await reply.text()
        assert 'llm_inference_golden_agreement_ratio{model="chat",tier="int4"} 0' in figures
        assert 'llm_inference_tier_comparisons_total{model="chat",outcome="replayed"}' in figures
        restore = {"model": "chat", "tier": "int4"}
        async with session.post(f"{server.base_url}/admin/tiers/restore", json=restore, headers=KEY) as reply:
            assert (await reply.json())["was_demoted"]
        assert (await complete(session, server, service_tier="int4", temperature=1))["service_tier"] == "int4"
