"""The engines of a server as a whole: begun together, known by their names, stopped together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import InvalidRequestError, NotReadyError, SourceError
from llm_inference.serve.keeper import Keeper
from tests.gateway.serving import until
from tests.serve.works import Engine, Works, ask, entry, kept_by, lazy


async def test_nothing_lazy_is_started_before_it_is_asked_for(tmp_path: Path, works: Works) -> None:
    async with kept_by(tmp_path, entry("eager"), lazy("late"), num_desks=2) as (keeper, desks):
        assert works.running == ["eager"]
        assert list(keeper.engines) == ["eager"]
        answers = await asyncio.gather(*(ask(desk.router, "late") for desk in desks for _ in range(10)))
        assert set(answers) == {"hello"}
        assert works.log.count("start late") == 1
        assert list(keeper.engines) == ["eager", "late"]
        report = await keeper.report()
        assert {name: one.state for name, one in report.engines.items()} == {"eager": "loaded", "late": "loaded"}
        assert [worker.replicas["late"].num_requests for worker in report.workers] == [10, 10]
    assert works.running == []


async def test_the_end_of_the_server_ends_a_load(tmp_path: Path, works: Works) -> None:
    works.go.clear()
    async with kept_by(tmp_path, lazy("late")) as (_, [desk]):
        asking = asyncio.create_task(ask(desk.router, "late"))
        await until(lambda: "start late" in works.log)
    assert works.log == ["start late", "stop late"]
    assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], NotReadyError)


async def test_all_are_stopped_if_one_is_refused(tmp_path: Path, works: Works, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig.model_validate({"models": [entry("a"), entry("b")]})
    keeper = Keeper(config, EngineContext(run_dir=tmp_path))
    start = Engine.start

    async def fail(self: Engine) -> None:
        await start(self)
        if self.info.name == "b":
            raise SourceError("no such model")

    monkeypatch.setattr(Engine, "start", fail)
    with pytest.raises(SourceError):
        await keeper.begin()
    assert works.running == []
    assert list(tmp_path.iterdir()) == []


async def test_an_operator_is_told_the_names_of_the_replicas(tmp_path: Path, works: Works) -> None:
    async with kept_by(tmp_path, entry("m", replicas=2)) as (keeper, _):
        with pytest.raises(InvalidRequestError, match="m#0, m#1"):
            await keeper.act("load", ["m#0", "m#2"])


async def test_what_is_no_longer_served_is_not_loaded(tmp_path: Path, works: Works) -> None:
    async with kept_by(tmp_path, entry("m")) as (keeper, _):
        with pytest.raises(NotReadyError, match="no longer served") as refused:
            await keeper.wake(str(tmp_path / "elsewhere"))
        assert refused.value.public_code == "model_unavailable"
