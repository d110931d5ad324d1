"""The parent process: binds, starts engines, then serves here or through workers.

    run(config)
      ├── bind the address (a port in use is known before a model is loaded)
      ├── plan and start every engine (refusals happen here, before anything listens)
      ├── listen; /ready says no until the warm-up is done
      └── SIGTERM: not ready → drain → stop listening → stop engines

With `api.workers` > 1 the parent owns the engines and one child per worker (`worker.py` runs `run_gateway` there); the
kernel spreads connections over the workers' sockets, which share one address. They hear of engines and of another
configuration through `workforce.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import uvloop

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.supervisor import Child
from llm_inference.errors import StartupError
from llm_inference.serve.fleet import OwnFleet, own_desk
from llm_inference.serve.hangup import reloading_on_hangup
from llm_inference.serve.http import run_gateway
from llm_inference.serve.keeper import Keeper
from llm_inference.serve.listener import bind
from llm_inference.serve.reload import Reloader
from llm_inference.serve.run_directory import run_directory
from llm_inference.serve.telemetry import metrics_server
from llm_inference.serve.tenants import check_tenants, limit_server
from llm_inference.serve.workforce import overseeing
from llm_inference.telemetry import tracing
from llm_inference.telemetry.logging import configure_logging, resolve_format
from llm_inference.telemetry.metrics import otlp

logger = logging.getLogger(__name__)

#: The configuration as it was read, and how to read it anew.
_Reading = tuple[ServerConfig, Callable[[], ServerConfig]]


def run(config: ServerConfig, read: Callable[[], ServerConfig] | None = None) -> int:
    """Serve until told to stop; the exit code. Raises `StartupError` when the service cannot start.

    `read` gives the configuration anew, for a reload.
    """
    as_read = config
    log_format = resolve_format(config.api.log_format, sys.stderr)
    config = config.model_copy(update={"api": config.api.model_copy(update={"log_format": log_format})})
    configure_logging(config.api.log_level, log_format, sys.stderr)
    started = time.monotonic()
    _allow_many_connections()
    check_tenants(config)
    if config.telemetry.traces:
        tracing.check_installed()
    if config.telemetry.otlp_metrics:
        otlp.check_installed()
    listener = bind(config.api)
    try:
        with run_directory() as run_dir:
            serve = _serve_workers if config.api.workers > 1 else _serve_here
            reading = None if read is None else (as_read, read)
            code: int = uvloop.run(serve(config, listener, run_dir, started, reading))
            return code
    finally:
        listener.close()
        if config.api.uds is not None:
            Path(config.api.uds).unlink(missing_ok=True)


async def _serve_here(
    config: ServerConfig,
    listener: socket.socket,
    run_dir: Path,
    started: float,
    reading: _Reading | None,
) -> int:
    keeper = await _begin_or_stop(config, run_dir)
    if keeper is None:
        return 0
    desk = own_desk(keeper)
    try:
        await keeper.join(desk)
        async with keeper.running(), _reloading(keeper, reading) as reloader:
            await run_gateway(
                config,
                desk,
                OwnFleet(keeper, reloader),
                listener,
                run_dir,
                warm_up=True,
                on_listening=lambda: _announce(config, listener, started),
            )
    finally:
        await desk.close()
        await keeper.close(grace_s=1.0)
    return 0


@contextlib.asynccontextmanager
async def _reloading(keeper: Keeper, reading: _Reading | None) -> AsyncIterator[Reloader | None]:
    if reading is None:
        yield None
        return
    reloader = Reloader(*reading, keeper)
    async with reloading_on_hangup(reloader.reload):
        try:
            yield reloader
        finally:
            await reloader.close()


async def _serve_workers(
    config: ServerConfig, listener: socket.socket, run_dir: Path, started: float, reading: _Reading | None
) -> int:
    """The parent: engines and workers are its children; it serves no HTTP itself."""
    # Here, since Python warns of a module that was imported before it is run by its name, as workers run it.
    from llm_inference.serve.worker import worker_spec

    if config.api.uds is not None:
        raise StartupError("api.uds: several workers cannot share a Unix socket; set api.workers to 1")
    # The address was free a moment ago; from here on every worker binds it again with SO_REUSEPORT.
    host, port = listener.getsockname()[:2]
    listener.close()
    api = config.api.model_copy(update={"host": host, "port": port})
    config = config.model_copy(update={"api": api})
    reserved = bind(api, reuse_port=True)  # holds the port while no worker listens; never listens itself
    keeper = await _begin_or_stop(config, run_dir)
    if keeper is None:
        return 0

    workers = [Child(worker_spec(run_dir, index)) for index in range(api.workers)]
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    try:
        async with (
            limit_server(config, run_dir),
            metrics_server(keeper.engines, run_dir),
            keeper.running(),
            _reloading(keeper, reading) as reloader,
            overseeing(keeper, OwnFleet(keeper, reloader), run_dir),
        ):
            await asyncio.gather(*(worker.start() for worker in workers))
            _announce(config, reserved, started)
            await stopping.wait()
            await asyncio.gather(*(worker.stop(api.shutdown_grace_s + 2) for worker in workers))
    finally:
        await asyncio.gather(*(worker.stop(0) for worker in workers), return_exceptions=True)
        await keeper.close(grace_s=1.0)
        reserved.close()
    return 0


async def _begin_or_stop(config: ServerConfig, run_dir: Path) -> Keeper | None:
    """Start the engines; None when SIGTERM or SIGINT came first."""
    keeper = Keeper(config, _context(config, run_dir))
    starting = asyncio.create_task(keeper.begin())
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, starting.cancel)
    try:
        await starting
        return keeper
    except asyncio.CancelledError:
        logger.info("stopped while starting")
        return None
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


def _context(config: ServerConfig, run_dir: Path) -> EngineContext:
    return EngineContext(
        run_dir=run_dir,
        progress=sys.stderr.isatty(),
        log_level=config.api.log_level,
        log_format=config.api.log_format,
    )


def _allow_many_connections() -> None:
    """As many open files as the system lets us have: the usual 1,024 are soon taken by idle connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems say "unlimited" and mean less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _announce(config: ServerConfig, listener: socket.socket, started: float) -> None:
    api = config.api
    if api.uds is not None:
        where = f"unix:{api.uds}"
    else:
        host, port = listener.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        if not (api.api_keys or api.keys or api.key_store) and host not in ("127.0.0.1", "::1"):
            logger.warning("anybody who reaches %s may use it: set api.api_keys or --api-key, or bind 127.0.0.1", where)
    names = ", ".join(dict.fromkeys(model.name for model in config.models))
    logger.info("serving %s on %s (%.1f s after start)", names, where, time.monotonic() - started)
