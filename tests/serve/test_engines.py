from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.engine import registry
from llm_inference.engine.fake import FakeEngine
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import SourceError
from llm_inference.serve import engines
from llm_inference.serve.engines import start_engines


class _Recorded(FakeEngine):
    def __init__(self, model: ModelConfig, context: EngineContext) -> None:
        super().__init__(model.name)
        self.model, self.context = model, context
        self.log: list[str] = []

    async def start(self) -> None:
        self.log.append("start")
        if self.model.model == "refused":
            raise SourceError("no such model")

    async def stop(self, grace_s: float) -> None:
        self.log.append("stop")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[_Recorded]:
    """Every engine that was planned, in order."""
    found: list[_Recorded] = []

    def create(model: ModelConfig, context: EngineContext) -> _Recorded:
        found.append(_Recorded(model, context))
        return found[-1]

    assert registry.engine_factory("fake")
    monkeypatch.setattr(engines, "engine_factory", lambda name: create)
    return found


def entry(**keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "chat", "model": "org/model", "engine": "fake", **keys})


async def test_each_replica_is_an_engine_with_a_room_of_its_own(tmp_path: Path, made: list[_Recorded]) -> None:
    models = (entry(version="v1", replicas=3), entry(version="v2"))
    started = await start_engines(models, EngineContext(run_dir=tmp_path))
    assert list(started) == ["chat@v1#0", "chat@v1#1", "chat@v1#2", "chat@v2"]
    assert list(started.values()) == made
    assert [one.context.run_dir.name for one in made] == ["model-0-0", "model-0-1", "model-0-2", "model-1"]
    assert [one.context.num_siblings for one in made] == [3, 3, 3, 1]
    assert all((one.model.replicas, one.model.version) == (1, None) for one in made)
    assert all(one.context.run_dir.stat().st_mode & 0o777 == 0o700 for one in made)


async def test_all_are_stopped_if_one_is_refused(tmp_path: Path, made: list[_Recorded]) -> None:
    models = (entry(replicas=2), entry(name="other", model="refused"), entry(name="never"))
    with pytest.raises(SourceError):
        await start_engines(models, EngineContext(run_dir=tmp_path))
    assert [one.log for one in made] == [["start", "stop"], ["start", "stop"], ["start", "stop"], []]
