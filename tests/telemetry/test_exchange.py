"""Several workers, one sum: over the real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llm_inference.engine.base import EngineStats
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.metrics.exchange import MetricsClient, MetricsServer
from llm_inference.telemetry.metrics.snapshot import Snapshot


def value(text: bytes, start: str) -> float | None:
    found = [line for line in text.decode().splitlines() if line.startswith(start)]
    assert len(found) < 2, found
    return float(found[0].rsplit(" ", 1)[1]) if found else None


async def connected(path: Path, metrics: Metrics) -> MetricsClient:
    client = MetricsClient(path, metrics.snapshot)
    metrics.share(client.together)
    client.start()
    while client._writer is None:
        await asyncio.sleep(0.01)
    return client


@pytest.fixture
async def parent(tmp_path: Path) -> Path:
    return tmp_path / "metrics.sock"


async def test_a_scrape_of_any_worker_shows_all(parent: Path) -> None:
    owner = Metrics(process="parent")
    owner.watch_engines(lambda: {"m": EngineStats(num_running=1, num_restarts=4)})
    server = MetricsServer(owner.snapshot)
    await server.start(parent)
    workers = [Metrics(process=f"gateway-{number}", vllm=True) for number in range(3)]
    clients = [await connected(parent, metrics) for metrics in workers]
    for number, metrics in enumerate(workers):
        for _ in range(number + 1):
            metrics.refused("x")
            metrics.first_token("m", 0.05)
        metrics.watch_in_flight(lambda number=number: number)  # type: ignore[misc]
        metrics.watch_engines(
            lambda: {
                "m": EngineStats(num_running=7, num_steps=100),
                "own": EngineStats(num_running=2, per_process=True),
            }
        )
    for metrics in workers:
        text = await metrics.scrape()
        assert value(text, 'llm_inference_refusals_total{reason="x"}') == 6
        assert value(text, 'llm_inference_time_to_first_token_seconds_count{model="m"}') == 6
        assert value(text, 'vllm:time_to_first_token_seconds_count{engine="0",model_name="m"}') == 6
        assert value(text, "llm_inference_requests_in_flight ") == 3
        assert value(text, "llm_inference_gateway_workers ") == 3
        # Of a shared engine one worker's figures, not the sum; restarts are the owner's to know.
        assert value(text, 'llm_inference_num_requests_running{model="m"}') == 7
        assert value(text, 'llm_inference_engine_steps_total{model="m"}') == 100
        assert value(text, 'llm_inference_engine_restarts_total{model="m"}') == 4
        assert value(text, 'llm_inference_num_requests_running{model="own"}') == 6

    # A worker ends: its counts stay, what it held does not.
    await clients[2].close()
    while len(server._workers) == 3:
        await asyncio.sleep(0.01)
    text = await workers[0].scrape()
    assert value(text, 'llm_inference_refusals_total{reason="x"}') == 6
    assert value(text, "llm_inference_requests_in_flight ") == 1
    assert value(text, "llm_inference_gateway_workers ") == 2
    for client in clients[:2]:
        await client.close()
    await server.close()


async def test_a_silent_worker_delays_a_scrape_and_no_more(parent: Path) -> None:
    server = MetricsServer(Snapshot)
    await server.start(parent)
    _, writer = await asyncio.open_unix_connection(parent)  # says nothing, ever
    metrics = Metrics()
    metrics.refused("x")
    client = await connected(parent, metrics)
    assert value(await metrics.scrape(), 'llm_inference_refusals_total{reason="x"}') == 1
    writer.close()
    await client.close()
    await server.close()


async def test_without_the_parent_a_worker_shows_itself(parent: Path) -> None:
    server = MetricsServer(Snapshot)
    await server.start(parent)
    metrics = Metrics()
    metrics.refused("x")
    client = await connected(parent, metrics)
    await server.close()
    while client._writer is not None:
        await asyncio.sleep(0.01)
    text = await metrics.scrape()
    assert value(text, 'llm_inference_refusals_total{reason="x"}') == 1
    assert value(text, "llm_inference_gateway_workers ") == 1
    await client.close()


async def test_garbage_ends_its_own_connection_alone(parent: Path) -> None:
    server = MetricsServer(Snapshot)
    await server.start(parent)
    for garbage in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xc1\xc1"):
        reader, writer = await asyncio.open_unix_connection(parent)
        writer.write(garbage)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
    metrics = Metrics()
    client = await connected(parent, metrics)
    assert b"llm_inference_gateway_workers 1.0" in await metrics.scrape()
    await client.close()
    await server.close()
