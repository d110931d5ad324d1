"""A keeper of engines that start, fail and stop on command, with desks in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest
from llm_inference.gateway.routing.router import Router
from llm_inference.serve import kept
from llm_inference.serve.desk import Desk
from llm_inference.serve.fleet import own_desk
from llm_inference.serve.keeper import Keeper


class Engine(FakeEngine):
    """Starts when its works say so, and fails with what they say."""

    def __init__(self, model: ModelConfig, works: Works, room: str) -> None:
        super().__init__(model.name, script=works.script)
        self.works = works
        self.room = room

    async def start(self) -> None:
        self.works.log.append(f"start {self.info.name}")
        await self.works.go.wait()
        if self.works.failures and self.room in self.works.fail_in:
            raise self.works.failures.pop(0)
        self.works.running.append(self.info.name)

    async def stop(self, grace_s: float) -> None:
        self.works.log.append(f"stop {self.info.name}")
        await asyncio.sleep(self.works.stop_s)
        if self.info.name in self.works.running:
            self.works.running.remove(self.info.name)


class Works:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.running: list[str] = []
        self.failures: list[Exception] = []
        self.fail_in = ("model-0",)  # run directories
        self.script = FakeScript()
        self.stop_s = 0.0
        self.go = asyncio.Event()
        self.go.set()

    def create(self, model: ModelConfig, context: EngineContext) -> Engine:
        return Engine(model, self, context.run_dir.name)


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Works:
    made = Works()
    monkeypatch.setattr(kept, "engine_factory", lambda name: made.create)
    return made


def entry(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "model": "any", "engine": "fake", "warmup": False, **keys}


def lazy(name: str, **keys: Any) -> dict[str, Any]:
    return entry(name, lazy=True, **keys)


@asynccontextmanager
async def kept_by(
    tmp_path: Path, *models: dict[str, Any], num_desks: int = 1, **loading: Any
) -> AsyncIterator[tuple[Keeper, list[Desk]]]:
    config = ServerConfig.model_validate({"models": models, "loading": loading, "api": {"shutdown_grace_s": 1}})
    keeper = Keeper(config, EngineContext(run_dir=tmp_path))
    await keeper.begin()
    desks = [own_desk(keeper) for _ in range(num_desks)]
    for desk in desks:
        await keeper.join(desk)
    try:
        async with keeper.running():
            yield keeper, desks
    finally:
        for desk in desks:
            await desk.close()
        await keeper.close(0)


async def ask(router: Router, model: str) -> str:
    _, engine = router.resolve(model)
    request = GenerateRequest(request_id="1", model=model, prompt="hello")
    return "".join([delta.text async for delta in engine.generate(request)])
