"""Metrics and traces from configuration: what a process counts, and how several processes show one sum."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.base import Engine, ReportsStats
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.metrics.exchange import MetricsClient, MetricsServer
from llm_inference.telemetry.metrics.gpu import Gpus
from llm_inference.telemetry.metrics.machine import Machine
from llm_inference.telemetry.metrics.otlp import OtlpMetrics
from llm_inference.telemetry.tracing import Tracing
from llm_inference.version import __version__

_SOCKET = "metrics.sock"


@runtime_checkable
class _HasProcess(Protocol):
    """Engines that are a child process of whoever started them."""

    @property
    def pid(self) -> int | None: ...


def metrics_of(
    config: ServerConfig,
    engines: Callable[[], Mapping[str, Engine]],
    *,
    worker: int | None = None,
    registry: CollectorRegistry,
) -> Metrics:
    """Of a gateway process; `worker` is its number where there are several."""
    metrics = Metrics(
        registry,
        vllm=config.telemetry.vllm_metrics,
        process="gateway" if worker is None else f"gateway-{worker}",
        machine=Machine(gpus=Gpus.open()),
    )
    metrics.set_once("build_info", {(__version__,): 1.0})
    metrics.watch_processes(lambda: engine_pids(engines()))
    return metrics


def engine_pids(engines: Mapping[str, Engine]) -> dict[str, int]:
    """By the process's name in metrics."""
    found = ((f"engine {name}", engine.pid) for name, engine in engines.items() if isinstance(engine, _HasProcess))
    return {name: pid for name, pid in found if pid is not None}


@asynccontextmanager
async def running_tracing(config: ServerConfig) -> AsyncIterator[Tracing | None]:
    """None where traces are off. Raises `ConfigError` where the packages are missing."""
    if not config.telemetry.traces:
        yield None
        return
    tracing = Tracing()
    try:
        yield tracing
    finally:
        await tracing.close()


@asynccontextmanager
async def sent_metrics(config: ServerConfig, metrics: Metrics, worker: int | None) -> AsyncIterator[None]:
    """Of several workers the first sends the sum. Raises `ConfigError` where the packages are missing."""
    if not config.telemetry.otlp_metrics or worker not in (None, 0):
        yield
        return
    otlp = OtlpMetrics(metrics.whole)
    sending = asyncio.create_task(otlp.run(), name="otlp metrics")
    try:
        yield
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await otlp.close()


@asynccontextmanager
async def shared_metrics(config: ServerConfig, metrics: Metrics, run_dir: Path) -> AsyncIterator[None]:
    """A worker's part of one /metrics for several."""
    if config.api.workers == 1:
        yield
        return
    client = MetricsClient(run_dir / _SOCKET, metrics.snapshot)
    metrics.share(client.together)
    client.start()
    try:
        yield
    finally:
        await client.close()


@asynccontextmanager
async def metrics_server(engines: Mapping[str, Engine], run_dir: Path) -> AsyncIterator[None]:
    """The parent's part: it holds the sums, and knows the engines' processes and restarts."""
    metrics = Metrics(process="parent", machine=Machine())
    metrics.watch_processes(lambda: engine_pids(engines))
    metrics.watch_engines(
        lambda: {name: engine.stats() for name, engine in engines.items() if isinstance(engine, ReportsStats)}
    )
    server = MetricsServer(metrics.snapshot)
    await server.start(run_dir / _SOCKET)
    try:
        yield
    finally:
        await server.close()
