"""One gateway process: HTTP over engines that are already started, warm-up, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from llm_inference.config.schema import ApiConfig, ModelConfig, ServerConfig
from llm_inference.engine.base import Embeds, Engine
from llm_inference.engine.types import EmbedRequest, GenerateRequest, SamplingParams
from llm_inference.errors import LLMInferenceError
from llm_inference.gateway.app import create_app
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.serve.connection import BoundedConnection
from llm_inference.serve.tenants import running_tenants
from llm_inference.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

WARMUP_TOKENS = 10
BACKLOG = 2048


async def run_gateway(
    config: ServerConfig,
    engines: Mapping[str, Engine],
    listener: socket.socket,
    run_dir: Path,
    *,
    warm_up: bool,
    on_listening: Callable[[], None],
) -> None:
    """Serve HTTP until SIGTERM or SIGINT, then drain. Engines are the caller's to stop."""
    aliases = {alias: model.name for model in config.models for alias in model.aliases}
    settings = gateway_settings(config.api, aliases)
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    async with running_tenants(config, metrics, run_dir) as tenants:
        app = create_app(engines, settings, registry=registry, metrics=metrics, tenants=tenants)
        await _serve(app, config, engines, listener, warm_up=warm_up, on_listening=on_listening)


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
    waiting = asyncio.create_task(stopping.wait())
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        on_listening()
        if warm_up:
            warming = asyncio.create_task(_warm_up(config.models, engines, gateway.end_warm_up))
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
        for task in (serving, waiting, warming):
            if task is not None:
                task.cancel()
        await asyncio.gather(serving, waiting, *([warming] if warming else []), return_exceptions=True)
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


def gateway_settings(api: ApiConfig, aliases: Mapping[str, str]) -> GatewaySettings:
    return GatewaySettings(
        api_prefix=api.api_prefix,
        api_keys=tuple(key.get_secret_value() for key in api.api_keys),
        open_metrics=api.open_metrics,
        cors_origins=tuple(api.cors_origins),
        max_body_bytes=api.max_body_bytes,
        request_timeout_s=api.request_timeout_s,
        max_concurrent_requests=api.max_concurrent_requests,
        log_prompts=api.log_prompts,
        aliases=dict(aliases),
    )


async def _warm_up(models: tuple[ModelConfig, ...], engines: Mapping[str, Engine], done: Callable[[], None]) -> None:
    """A few tokens for each warm-up prompt, or a vector: first-use costs are paid before the first user comes."""
    for model in models:
        engine = engines[model.name]
        begun = time.monotonic()
        ignore_eos = engine.capabilities.support("ignore_eos") != "refused"
        for number, prompt in enumerate(model.warmup):
            request = GenerateRequest(
                request_id=f"warm-up-{number}",
                model=model.name,
                prompt=prompt,
                sampling=SamplingParams(max_tokens=WARMUP_TOKENS, temperature=0.0, ignore_eos=ignore_eos),
            )
            try:
                if engine.capabilities.generate:
                    async for _ in engine.generate(request):
                        pass
                elif isinstance(engine, Embeds):
                    await engine.embed(EmbedRequest(request_id=request.request_id, model=model.name, inputs=(prompt,)))
            except LLMInferenceError as exc:
                logger.warning("warm-up prompt %d of %s failed: %s", number, model.name, exc.message)
        if model.warmup:
            logger.info("%s is warm after %.1f s", model.name, time.monotonic() - begun)
    done()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: draining is ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
