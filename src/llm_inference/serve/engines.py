"""Engines from configuration, one or more for each entry: plan all, start all, or none."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.serve.routing import replica_configs
from llm_inference.serve.run_directory import run_directory


@asynccontextmanager
async def open_engine(model: ModelConfig, *, progress: bool = True) -> AsyncGenerator[Engine, None]:
    """One started engine without a gateway, for the terminal commands."""
    with run_directory() as run_dir:
        # A person reads the terminal: what is not wrong is not said.
        context = EngineContext(run_dir=run_dir, progress=progress, log_level="warning", log_format="console")
        engines = await start_engines((model,), context)
        try:
            yield next(iter(engines.values()))
        finally:
            for engine in engines.values():
                await engine.stop(grace_s=0)


async def start_engines(
    models: tuple[ModelConfig, ...], context: EngineContext, *, without: frozenset[str] = frozenset()
) -> dict[str, Engine]:
    """By replica id: plan all, then start all in order. If one is refused, those already started are stopped.

    `without`: replicas that run already.
    """
    planned: dict[str, Engine] = {}
    for index, model in enumerate(models):
        replicas = replica_configs(model)
        for number, (replica_id, own_model) in enumerate(replicas.items()):
            if replica_id in without:
                continue
            run_dir = context.run_dir / (f"model-{index}" if len(replicas) == 1 else f"model-{index}-{number}")
            run_dir.mkdir(mode=0o700, exist_ok=True)
            own_context = dataclasses.replace(context, run_dir=run_dir, num_siblings=len(replicas))
            # In a thread: downloads and conversions take a while, and signals must still be heard.
            planned[replica_id] = await asyncio.to_thread(engine_factory(own_model.engine), own_model, own_context)
    started: list[Engine] = []
    try:
        for engine in planned.values():
            started.append(engine)
            await engine.start()
    except BaseException:
        for engine in started:
            await engine.stop(grace_s=0)
        raise
    return planned
