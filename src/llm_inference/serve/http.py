"""One gateway process: HTTP over engines that are already started, warm-up, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from llm_inference.config.admission import AdmissionConfig
from llm_inference.config.schema import ApiConfig, ServerConfig
from llm_inference.engine.base import Engine
from llm_inference.errors import LLMInferenceError
from llm_inference.gateway.admission.rules import NO_QUEUE, AdmissionRules, DegradeRule
from llm_inference.gateway.app import create_app
from llm_inference.gateway.canary import Canary
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.serve.connection import BoundedConnection
from llm_inference.serve.reload import Reloader
from llm_inference.serve.routing import routing_table
from llm_inference.serve.telemetry import metrics_of, running_tracing, shared_metrics
from llm_inference.serve.tenants import running_tenants
from llm_inference.serve.warm_up import warm_models

logger = logging.getLogger(__name__)

BACKLOG = 2048
#: Containers made and not yet freed after which the youngest are searched for cycles; 700 by default.
GC_THRESHOLD = 20_000


async def run_gateway(
    config: ServerConfig,
    engines: Mapping[str, Engine],
    listener: socket.socket,
    run_dir: Path,
    *,
    warm_up: bool,
    on_listening: Callable[[], None],
    worker: int | None = None,
    reloader: Callable[[Router], Reloader] | None = None,
) -> None:
    """Serve HTTP until SIGTERM or SIGINT, then drain. Engines are the caller's to stop.

    `worker`: which of several gateway processes this is. `reloader`: made for this router, it reloads on SIGHUP and
    when an operator asks for it.
    """
    aliases = {alias: model.name for model in config.models for alias in model.aliases}
    settings = gateway_settings(
        config.api,
        aliases,
        admission_rules(config.admission),
        redact_prompts=config.telemetry.redact_prompts,
    )
    registry = CollectorRegistry()
    metrics = metrics_of(config, engines, worker=worker, registry=registry)
    async with (
        running_tracing(config) as tracing,
        shared_metrics(config, metrics, run_dir),
        running_tenants(config, metrics, run_dir) as tenants,
    ):
        router = Router(routing_table(config.models, engines))
        app = create_app(router, settings, registry=registry, metrics=metrics, tenants=tenants, tracing=tracing)
        async with _reloading(app, reloader(router) if reloader is not None else None):
            try:
                await _serve(app, config, engines, listener, warm_up=warm_up, on_listening=on_listening)
            finally:
                await router.close()


@contextlib.asynccontextmanager
async def _reloading(app: FastAPI, reloader: Reloader | None) -> AsyncGenerator[None, None]:
    if reloader is None:
        yield
        return
    app.state.gateway.reload = reloader.reload
    tasks: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            await reloader.reload()
        except LLMInferenceError as exc:
            logger.error("the configuration was not taken, the old one goes on: %s", exc.message)

    def on_hangup() -> None:
        tasks.add(task := asyncio.create_task(reload()))
        task.add_done_callback(tasks.discard)

    loop = asyncio.get_running_loop()
    # On a terminal it means that the terminal is gone, and ends the server as it ends any program.
    listens = not sys.stdin.isatty()
    if listens:
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        if listens:
            loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await reloader.close()


async def _serve(
    app: FastAPI,
    config: ServerConfig,
    engines: Mapping[str, Engine],
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
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        on_listening()
        _spare_garbage_collection()
        if warm_up:
            warming = asyncio.create_task(warm_models(config.models, engines, gateway.end_warm_up))
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
        tasks = [task for task in (serving, waiting, warming, canary) if task is not None]
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
        degrade=tuple(DegradeRule(rule.when_queue_above, rule.max_tokens) for rule in config.degrade),
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
