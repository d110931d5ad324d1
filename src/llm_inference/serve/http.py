"""One gateway process: HTTP over engines that are already started, warm-up, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from llm_inference.config.admission import AdmissionConfig
from llm_inference.config.schema import ApiConfig, ServerConfig
from llm_inference.engine.held import Held
from llm_inference.gateway.admin.fleet import Fleet
from llm_inference.gateway.admission.rules import NO_QUEUE, AdmissionRules, DegradeRule
from llm_inference.gateway.app import create_app
from llm_inference.gateway.canary import Canary
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.serve.connection import BoundedConnection
from llm_inference.serve.desk import Desk
from llm_inference.serve.open_files import OpenFiles
from llm_inference.serve.telemetry import metrics_of, running_tracing, sent_metrics, shared_metrics
from llm_inference.serve.tenants import running_tenants
from llm_inference.serve.warm_up import warm_models

logger = logging.getLogger(__name__)

BACKLOG = 2048
#: Containers made and not yet freed after which the youngest are searched for cycles; 700 by default.
GC_THRESHOLD = 20_000


async def run_gateway(
    config: ServerConfig,
    desk: Desk,
    fleet: Fleet,
    listener: socket.socket,
    run_dir: Path,
    *,
    warm_up: bool,
    on_listening: Callable[[], None],
    worker: int | None = None,
) -> None:
    """Serve HTTP until SIGTERM or SIGINT, then drain. The desk's engines are the caller's to stop.

    `worker`: which of several gateway processes this is.
    """
    aliases = {alias: model.name for model in config.models for alias in model.aliases}
    settings = gateway_settings(
        config.api,
        aliases,
        admission_rules(config.admission),
        redact_prompts=config.telemetry.redact_prompts,
    )
    registry = CollectorRegistry()
    metrics = metrics_of(config, lambda: desk.engines, worker=worker, registry=registry)
    async with (
        running_tracing(config) as tracing,
        shared_metrics(config, metrics, run_dir),
        sent_metrics(config, metrics, worker),
        running_tenants(config, metrics, run_dir) as tenants,
    ):
        app = create_app(desk.router, settings, registry=registry, metrics=metrics, tenants=tenants, tracing=tracing)
        app.state.gateway.fleet = fleet
        desk.admission = app.state.gateway.admission
        await _serve(app, config, desk, listener, warm_up=warm_up, on_listening=on_listening)


async def _serve(
    app: FastAPI,
    config: ServerConfig,
    desk: Desk,
    listener: socket.socket,
    *,
    warm_up: bool,
    on_listening: Callable[[], None],
) -> None:
    gateway = app.state.gateway
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=BoundedConnection,
            log_config=None,
            log_level="warning",  # its start and stop lines say less than ours
            access_log=False,
            proxy_headers=False,  # whose word is believed is api.trusted_proxies' business
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
            backlog=BACKLOG,
        )
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():  # the second one means it
            server.force_exit = True
        stopping.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal)
    if warm_up:
        gateway.begin_warm_up()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    warming: asyncio.Task[None] | None = None
    canary: asyncio.Task[None] | None = None
    waiting = asyncio.create_task(stopping.wait())
    watching = asyncio.create_task(OpenFiles().watch())
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        on_listening()
        _spare_garbage_collection()
        if warm_up:
            loaded = {
                name: one for name, one in desk.engines.items() if isinstance(one, Held) and one.state == "loaded"
            }
            warming = asyncio.create_task(warm_models(config.models, loaded, gateway.end_warm_up))
            if config.telemetry.canary_interval_s is not None:  # of several workers one is enough
                asking = Canary(gateway.engines, gateway.metrics, gateway.canary_results)
                canary = asyncio.create_task(asking.run(config.telemetry.canary_interval_s))
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        gateway.begin_drain()
        logger.info("stopping: running requests may finish for %.0f s", config.api.shutdown_grace_s)
        idle = asyncio.create_task(gateway.wait_idle(config.api.shutdown_grace_s))
        stopping.clear()
        again = asyncio.create_task(stopping.wait())
        await asyncio.wait({idle, again}, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        again.cancel()
        server.should_exit = True
        server.force_exit = True  # what still runs has had its time
        await serving
        left = tuple(server.server_state.tasks)
        for running in left:
            running.cancel()
        await asyncio.gather(*left, return_exceptions=True)  # their last lines and ledger rows are written
    finally:
        tasks = [task for task in (serving, waiting, watching, warming, canary) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


def admission_rules(config: AdmissionConfig) -> AdmissionRules:
    return AdmissionRules(
        max_queue_requests=config.max_queue_requests,
        max_queue_tokens=config.max_queue_tokens,
        max_wait_s=config.max_wait_s,
        ageing_s=config.ageing_s,
        max_kv_cache_usage=config.max_kv_cache_usage,
        shares=dict(config.shares),
        degrade=tuple(DegradeRule(rule.when_queue_above, rule.max_tokens, rule.lower_tier) for rule in config.degrade),
    )


def gateway_settings(
    api: ApiConfig,
    aliases: Mapping[str, str],
    admission: AdmissionRules = NO_QUEUE,
    *,
    redact_prompts: bool = True,
) -> GatewaySettings:
    return GatewaySettings(
        api_prefix=api.api_prefix,
        api_keys=tuple(key.get_secret_value() for key in api.api_keys),
        open_metrics=api.open_metrics,
        page=api.page,
        cors_origins=tuple(api.cors_origins),
        max_body_bytes=api.max_body_bytes,
        request_timeout_s=api.request_timeout_s,
        max_concurrent_requests=api.max_concurrent_requests,
        admission=admission,
        log_prompts=api.log_prompts,
        redact_prompts=redact_prompts,
        aliases=dict(aliases),
    )


def _spare_garbage_collection() -> None:
    """Collect cycles less often, and never look through what is here now: it lives as long as the process.

    A request makes hundreds of short-lived containers and hardly a cycle; by Python's own settings looking for them
    took a seventh of the time of small requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: draining is ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
