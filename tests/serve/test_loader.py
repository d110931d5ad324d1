"""Engines loaded when a request needs them, unloaded when nobody does, drained and restarted by an operator."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llm_inference.engine.fake import FakeScript
from llm_inference.errors import NotReadyError, SourceError
from tests.gateway.serving import until
from tests.serve.works import Works, ask, entry, kept_by, lazy


async def test_loading_is_visible(tmp_path: Path, works: Works) -> None:
    works.go.clear()
    async with kept_by(tmp_path, lazy("late")) as (keeper, [desk]):
        asking = asyncio.create_task(ask(desk.router, "late"))
        await until(lambda: keeper.kept["late"].state == "loading")
        _, engine = desk.router.resolve("late")
        health = await engine.health()
        assert (health.live, health.ready) == (True, True)
        assert health.reason.startswith("loading for ")
        works.go.set()
        assert await asking == "hello"


async def test_a_failure_is_told_to_all_and_tried_again_later(tmp_path: Path, works: Works) -> None:
    works.failures = [SourceError("weights.bin is damaged; its last lines:\n secret")]
    async with kept_by(tmp_path, lazy("late"), retry_s=0.2) as (keeper, [desk]):
        answers = await asyncio.gather(*(ask(desk.router, "late") for _ in range(5)), return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, NotReadyError)
            assert (answer.public_code, answer.retry_after_s) == ("model_load_failed", 1.0)
            assert "weights.bin is damaged" in answer.message
            assert "secret" not in answer.message
        assert works.log == ["start late", "stop late"]
        with pytest.raises(NotReadyError, match=r"weights\.bin is damaged"):
            await ask(desk.router, "late")
        assert works.log.count("start late") == 1, "it is not tried again at once"
        assert not (await desk.router.resolve("late")[1].health()).ready
        await asyncio.sleep(0.25)
        assert await ask(desk.router, "late") == "hello"
        assert keeper.kept["late"].reason == ""


async def test_an_operator_does_not_wait_for_the_next_try(tmp_path: Path, works: Works) -> None:
    works.failures = [SourceError("not yet")]
    async with kept_by(tmp_path, lazy("late"), retry_s=100) as (keeper, [desk]):
        with pytest.raises(NotReadyError, match="not yet"):
            await keeper.act("load", ["late"])
        await keeper.act("load", ["late"])
        assert await ask(desk.router, "late") == "hello"


async def test_idle_models_are_unloaded_and_come_back(tmp_path: Path, works: Works) -> None:
    works.script = FakeScript(answers=["abcdefgh"], delay_s=0.05)
    async with kept_by(tmp_path, lazy("late", idle_unload_s=0.1), num_desks=2) as (keeper, [first, second]):
        running = asyncio.create_task(ask(first.router, "late"))
        await asyncio.sleep(0.3)
        assert works.running == ["late"], "idle in one process, not in the other"
        assert await running == "abcdefgh"
        await until(lambda: works.running == [])
        await until(lambda: keeper.kept["late"].state == "unloaded")
        assert await ask(second.router, "late") == "abcdefgh"
        assert works.log == ["start late", "stop late", "start late"]


async def test_the_least_recently_used_gives_way(tmp_path: Path, works: Works) -> None:
    models = [lazy(name, memory="2GiB") for name in ("a", "b", "c")]
    async with kept_by(tmp_path, *models, memory_budget="4GiB") as (_, [desk]):
        for name in ("a", "b", "a"):
            await ask(desk.router, name)
            await asyncio.sleep(0.02)
        assert sorted(works.running) == ["a", "b"]
        await ask(desk.router, "c")
        assert sorted(works.running) == ["a", "c"]


async def test_what_runs_is_never_taken_away(tmp_path: Path, works: Works) -> None:
    works.script = FakeScript(answers=["abcdefgh"], delay_s=0.05)
    models = [entry("always", memory="1GiB"), *(lazy(name, memory="2GiB") for name in ("a", "b"))]
    async with kept_by(tmp_path, *models, memory_budget="3GiB", max_wait_s=0.1) as (_, [desk]):
        running = asyncio.create_task(ask(desk.router, "a"))
        await until(lambda: "a" in works.running)
        await asyncio.sleep(0.02)
        with pytest.raises(NotReadyError, match=r"loading\.(memory_budget|max_wait_s)") as refused:
            await ask(desk.router, "b")
        assert refused.value.retry_after_s is not None
        assert await running == "abcdefgh"
        assert await ask(desk.router, "b") == "abcdefgh"
        assert works.running == ["always", "b"]


async def test_a_load_that_waits_for_memory_goes_on_when_there_is_some(tmp_path: Path, works: Works) -> None:
    works.script = FakeScript(answers=["abcdefgh"], delay_s=0.03)
    models = [lazy(name, memory="2GiB") for name in ("a", "b")]
    async with kept_by(tmp_path, *models, memory_budget="3GiB") as (_, [desk]):
        running = asyncio.create_task(ask(desk.router, "a"))
        await until(lambda: "a" in works.running)
        assert await ask(desk.router, "b") == "abcdefgh"
        assert await running == "abcdefgh"


async def test_unload_drain_and_load(tmp_path: Path, works: Works) -> None:
    works.script = FakeScript(answers=["abcdefgh"], delay_s=0.02)
    async with kept_by(tmp_path, entry("m", replicas=2)) as (keeper, [desk]):
        running = [asyncio.create_task(ask(desk.router, "m")) for _ in range(2)]
        await asyncio.sleep(0.05)
        await keeper.act("unload", ["m#0"])
        assert works.log.count("stop m") == 1
        assert {await one for one in running} == {"abcdefgh"}, "what ran was finished first"
        assert keeper.kept["m#0"].state == "unloaded"
        for _ in range(3):
            assert await ask(desk.router, "m") == "abcdefgh"
        assert (await keeper.report()).workers[0].replicas["m#0"].num_requests == 1
        await keeper.act("drain", ["m#1"])
        assert keeper.kept["m#1"].state == "draining"
        with pytest.raises(NotReadyError):
            await ask(desk.router, "m")
        assert works.log.count("stop m") == 1, "what is drained stays loaded"
        await keeper.act("load", ["m#0", "m#1"])
        assert works.log.count("start m") == 3
        assert await ask(desk.router, "m") == "abcdefgh"


async def test_requests_wait_while_an_engine_is_restarted(tmp_path: Path, works: Works) -> None:
    async with kept_by(tmp_path, entry("m")) as (keeper, [desk]):
        works.go.clear()
        restarting = asyncio.create_task(keeper.act("restart", ["m"]))
        await until(lambda: keeper.kept["m"].state == "loading" and works.log.count("start m") == 2)
        waiting = asyncio.create_task(ask(desk.router, "m"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        works.go.set()
        await restarting
        assert await waiting == "hello"
        assert works.log == ["start m", "stop m", "start m"]


async def test_an_operators_unload_ends_a_load(tmp_path: Path, works: Works) -> None:
    works.go.clear()
    async with kept_by(tmp_path, lazy("late")) as (keeper, [desk]):
        asking = [asyncio.create_task(ask(desk.router, "late")) for _ in range(3)]
        await until(lambda: keeper.kept["late"].state == "loading" and "start late" in works.log)
        await keeper.act("unload", ["late"])
        for answer in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(answer, NotReadyError)
        assert works.log == ["start late", "stop late"]
        works.go.set()
        assert await ask(desk.router, "late") == "hello"


async def test_more_replicas_are_loaded_only_when_there_is_no_room(tmp_path: Path, works: Works) -> None:
    works.script = FakeScript(answers=["abcdefgh"], delay_s=0.05)
    model = lazy("m", replicas=2, routing={"max_in_flight": 2})
    async with kept_by(tmp_path, model) as (_, [desk]):
        await ask(desk.router, "m")
        running = [asyncio.create_task(ask(desk.router, "m")) for _ in range(2)]
        await asyncio.sleep(0.02)
        assert works.running == ["m"]
        running.append(asyncio.create_task(ask(desk.router, "m")))
        await asyncio.gather(*running)
        assert works.running == ["m", "m"]


async def test_giving_up_a_load_again_and_again_leaves_nothing_behind(tmp_path: Path, works: Works) -> None:
    works.go.clear()
    works.stop_s = 0.05
    models = [lazy(name, memory="2GiB") for name in ("a", "b")]
    async with kept_by(tmp_path, *models, memory_budget="2GiB", max_wait_s=1) as (keeper, [desk]):
        asking = asyncio.create_task(ask(desk.router, "a"))
        await until(lambda: "start a" in works.log)
        giving_up = []
        for _ in range(4):
            giving_up.append(asyncio.create_task(keeper.act("unload", ["a"])))
            await asyncio.sleep(0.01)
        await asyncio.gather(*giving_up)
        assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], NotReadyError)
        assert (keeper.kept["a"].state, works.log) == ("unloaded", ["start a", "stop a"])
        works.go.set()
        assert await ask(desk.router, "b") == "hello", "the memory of what was given up is free"


async def test_what_makes_room_goes_to_its_end_when_the_load_is_given_up(tmp_path: Path, works: Works) -> None:
    works.stop_s = 0.1
    models = [lazy(name, memory="2GiB") for name in ("a", "b")]
    async with kept_by(tmp_path, *models, memory_budget="2GiB", max_wait_s=1) as (keeper, [desk]):
        await ask(desk.router, "a")
        asking = asyncio.create_task(ask(desk.router, "b"))
        await until(lambda: "stop a" in works.log)
        await keeper.act("unload", ["b"])
        assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], NotReadyError)
        assert await ask(desk.router, "a") == "hello"
        assert works.log == ["start a", "stop a", "start a"]
        assert works.running == ["a"]


async def test_an_operators_unload_ends_a_restart_but_no_request(tmp_path: Path, works: Works) -> None:
    works.script = FakeScript(answers=["abcdefgh"], delay_s=0.05)
    async with kept_by(tmp_path, entry("m")) as (keeper, [desk]):
        running = asyncio.create_task(ask(desk.router, "m"))
        await asyncio.sleep(0.06)
        restarting = [asyncio.create_task(keeper.act("restart", ["m"])) for _ in range(2)]
        await asyncio.sleep(0.01)
        await keeper.act("unload", ["m"])
        assert await running == "abcdefgh"
        assert works.log == ["start m", "stop m"]
        ends = await asyncio.gather(*restarting, return_exceptions=True)
        assert all(isinstance(end, NotReadyError) for end in ends)
        works.go.clear()
        restarting = [asyncio.create_task(keeper.act("restart", ["m"])) for _ in range(2)]
        await until(lambda: works.log.count("start m") == 2)
        await keeper.act("unload", ["m"])
        assert keeper.kept["m"].reason == "unloaded by an operator"
        assert works.running == []
        await asyncio.gather(*restarting, return_exceptions=True)


async def test_a_failure_is_forgotten_when_a_load_has_worked(tmp_path: Path, works: Works) -> None:
    works.failures = [SourceError("not yet")]
    async with kept_by(tmp_path, lazy("late"), retry_s=100) as (keeper, [desk]):
        with pytest.raises(NotReadyError, match="not yet"):
            await ask(desk.router, "late")
        await keeper.act("load", ["late"])
        await keeper.act("unload", ["late"])
        assert await ask(desk.router, "late") == "hello"


async def test_what_is_being_drained_is_had_back_at_once(tmp_path: Path, works: Works) -> None:
    works.script = FakeScript(answers=["abcdefgh"], delay_s=0.05)
    async with kept_by(tmp_path, entry("m")) as (keeper, [desk]):
        running = asyncio.create_task(ask(desk.router, "m"))
        await asyncio.sleep(0.06)
        draining = asyncio.create_task(keeper.act("drain", ["m"]))
        await until(lambda: keeper.kept["m"].state == "draining")
        await keeper.act("load", ["m"])
        assert not running.done()
        assert await ask(desk.router, "m") == "abcdefgh"
        assert await running == "abcdefgh"
        await draining
        assert keeper.kept["m"].state == "loaded"
