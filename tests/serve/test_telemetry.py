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
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from llm_inference.config.schema import ServerConfig
from llm_inference.config.telemetry import TelemetryConfig
from llm_inference.engine.fake import FakeEngine
from llm_inference.serve.telemetry import engine_pids, metrics_of, running_tracing
from tests.e2e.server import RunningServer, running_server
from tests.telemetry.otlp_receiver import receiving

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
    lines = [json.loads(line) for line in server.lines.copy() if line.startswith("{")]
    workers = {line.get("worker") for line in lines if line["message"] == "request"}
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
        metrics = metrics_of(config, lambda: engines, registry=CollectorRegistry())
        metrics.watch_engines(lambda: {"m": engines["m"].stats()})
        text = metrics.exposition().decode()
        assert ("vllm:num_requests_running" in text) is said
        assert 'llm_inference_process_threads{process="gateway"}' in text
        assert "llm_inference_build_info{version=" in text
    assert engine_pids(engines) == {}


@pytest.mark.e2e
def test_several_workers_send_one_sum_over_otlp(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("canary_interval_s: 1", "otlp_metrics: true"))
    with receiving() as receiver:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "OTEL_SERVICE_NAME": "by the test",
        }

        def answered() -> float:
            if not receiver.requests or "llm_inference_requests_total" not in receiver.metrics():
                return 0.0
            points = receiver.points("llm_inference_requests_total")
            return sum(point.as_double for labels, point in points if labels["route"] == "/v1/completions")

        with running_server(["--config", str(file)], env=env) as running:
            for _ in range(20):
                complete(running)
            deadline = time.monotonic() + 60
            while answered() < 20 and time.monotonic() < deadline:
                time.sleep(0.05)
        assert answered() == 20
        assert receiver.resource()["service.name"] == "by the test"
        # One sender: two of them would begin at two times.
        begun = {
            point.start_time_unix_nano
            for request in receiver.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.sum.data_points
        }
        assert len(begun) == 1


@pytest.mark.e2e
def test_the_canary_goes_on_after_a_reload(tmp_path: Path) -> None:
    """The model that came is asked, and of the one that went nothing is left to be ill."""
    file = tmp_path / "config.json"
    keys = [{"name": "operator", "key": "admin-key", "routes": ["inference", "models", "metrics", "admin"]}]

    def write(*names: str) -> None:
        models = [{"name": name, "model": name, "engine": "fake"} for name in names]
        file.write_text(json.dumps({"api": {"keys": keys}, "telemetry": {"canary_interval_s": 1}, "models": models}))

    def ask(server: RunningServer, path: str, body: bytes | None = None) -> Any:
        headers = {"authorization": "Bearer admin-key", "content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body, headers), timeout=30) as reply:
            return json.load(reply)

    def canaries(server: RunningServer) -> dict[str, bool]:
        """Of each model: whether its last token came; absent: not asked yet."""
        models = ask(server, "/health/detail")["models"]
        return {name: model["canary"]["ok"] for name, model in models.items() if model["canary"] is not None}

    write("first", "second")
    with running_server(["--config", str(file)]) as server:
        for expected in ({"first": True, "second": True}, {"second": True, "third": True}):
            deadline = time.monotonic() + 30
            while canaries(server) != expected and time.monotonic() < deadline:
                time.sleep(0.1)
            assert canaries(server) == expected
            write("second", "third")
            ask(server, "/v1/admin/reload", b"{}")
        assert "the canary of first got no token" not in server.log
