"""The engines of the suite, each started as it is in service: an object that fulfils `Engine`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from llm_inference.adapters.openai import create as create_openai
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.fake import FakeEngine
from llm_inference.engine.registry import EngineContext
from llm_inference.gateway.app import create_app
from llm_inference.gateway.settings import GatewaySettings
from llm_inference.serve import open_engine
from tests.gateway.serving import _Server

MAX_MODEL_LEN = 512


@dataclass(frozen=True)
class Case:
    """`work_ends()` waits until nothing runs any more where the work is done; `kill` ends that abruptly."""

    name: str
    engine: Engine
    behind: Engine  # where the tokens are made


def default_model(**more: object) -> ModelConfig:
    return ModelConfig.model_validate({"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 16, **more})


@asynccontextmanager
async def native() -> AsyncGenerator[Case, None]:
    async with open_engine(default_model(), progress=False) as engine:
        yield Case("native", engine, engine)


@asynccontextmanager
async def fake() -> AsyncGenerator[Case, None]:
    engine = FakeEngine(max_model_len=MAX_MODEL_LEN)
    await engine.start()
    yield Case("fake", engine, engine)
    await engine.stop(0)


@asynccontextmanager
async def second_instance() -> AsyncGenerator[Case, None]:
    """Ourselves behind our own API, as `engine: openai` sees it."""
    async with native() as case, served(case.engine) as url, over_http(url, case.engine.info.name) as engine:
        yield Case("openai", engine, case.engine)


@asynccontextmanager
async def served(engine: Engine) -> AsyncGenerator[str, None]:
    """`engine` behind a gateway on a free port; its URL."""
    import asyncio

    import uvicorn

    app = create_app({engine.info.name: engine}, GatewaySettings(), registry=CollectorRegistry())
    server = _Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done()
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task


@asynccontextmanager
async def over_http(url: str, model: str) -> AsyncGenerator[Engine, None]:
    config = ModelConfig(name="served", model=model, engine="openai", url=url)
    engine = create_openai(config, EngineContext(run_dir=Path()))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop(0)


ENGINES: dict[str, Callable[[], AbstractAsyncContextManager[Case]]] = {
    "native": native,
    "fake": fake,
    "openai": second_instance,
}
