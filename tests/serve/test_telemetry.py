"""One /metrics of several workers, by the real command, with an engine that needs no model."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from llm_inference.config.schema import ServerConfig
from llm_inference.config.telemetry import TelemetryConfig
from llm_inference.engine.fake import FakeEngine
from llm_inference.serve.telemetry import engine_pids, metrics_of, running_tracing
from tests.e2e.server import RunningServer, running_server

CONFIG = """\
api: {workers: 2, log_format: json}
name: echo
model: echo
engine: fake
telemetry: {canary_interval_s: 1}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file = tmp_path_factory.mktemp("serve") / "config.yaml"
    file.write_text(CONFIG)
    with running_server(["--config", str(file)]) as running:
        yield running


def complete(server: RunningServer) -> None:
    """On a connection of its own, so that the kernel chooses the worker."""
    body = json.dumps({"model": "echo", "prompt": "x", "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{server.base_url}/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def scraped(server: RunningServer) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as reply:
        lines = [line.rsplit(" ", 1) for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


REQUESTS = 'llm_inference_requests_total{model="echo",route="/v1/completions",status="200"}'


@pytest.mark.e2e
def test_two_workers_are_one(server: RunningServer) -> None:
    for _ in range(30):
        complete(server)
    workers = {json.loads(line).get("worker") for line in server.lines if '"message": "request"' in line}
    assert workers == {0, 1}
    for _ in range(6):  # whoever answers
        figures = scraped(server)
        assert figures[REQUESTS] == 30
        assert figures["llm_inference_gateway_workers"] == 2
        assert figures["llm_inference_requests_in_flight"] == 0
        assert figures['vllm:generation_tokens_total{engine="0",model_name="echo"}'] == 30  # it says one word
        assert figures['llm_inference_engine_ready{model="echo"}'] == 1
    named = {
        found[1] for name in figures if (found := re.match(r'llm_inference_process_threads\{process="(.*)"\}', name))
    }
    assert named == {"parent", "gateway-0", "gateway-1"}

    # A worker is killed: what it counted stays.
    time.sleep(2.5)
    victim = next(pid for pid in server.children() if b"worker\x00" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + 30
    figures = {}
    while figures.get("llm_inference_gateway_workers") != 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        with suppress(OSError):  # what the kernel gives to the dying one's socket is reset
            figures = scraped(server)
    assert figures[REQUESTS] == 30
    assert figures['llm_inference_canary_runs_total{model="echo",outcome="ok"}'] >= 1


async def test_traces_are_off_unless_asked_for() -> None:
    async with running_tracing(ServerConfig()) as tracing:
        assert tracing is None


def test_vllm_names_are_switched_by_the_configuration() -> None:
    engines = {"m": FakeEngine("m")}
    for said in (True, False):
        config = ServerConfig(telemetry=TelemetryConfig(vllm_metrics=said))
        metrics = metrics_of(config, engines, registry=CollectorRegistry())
        metrics.watch_engines(lambda: {"m": engines["m"].stats()})
        text = metrics.exposition().decode()
        assert ("vllm:num_requests_running" in text) is said
        assert 'llm_inference_process_threads{process="gateway"}' in text
        assert "llm_inference_build_info{version=" in text
    assert engine_pids(engines) == {}
