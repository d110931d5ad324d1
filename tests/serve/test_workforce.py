"""Keeper and gateways on two ends of a socket, and the real command with two workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import ConfigError, NotReadyError
from llm_inference.serve import workforce
from llm_inference.serve.desk import Desk
from llm_inference.serve.fleet import OwnFleet
from llm_inference.serve.keeper import Keeper
from llm_inference.serve.reload import Reloader
from llm_inference.serve.workforce import Oversight, overseeing, overseen
from tests.gateway.serving import until
from tests.serve.test_reload import ADMIN, SLOW, TEXT, USER, Server, running_server, streamed
from tests.serve.test_reload import ask as http_ask
from tests.serve.works import ask, entry, lazy


class Office:
    """A parent and two workers, in one process, with sockets between them."""

    def __init__(self, keeper: Keeper, workers: list[tuple[ServerConfig, Desk, Oversight]], lost: list[int]) -> None:
        self.keeper = keeper
        self.desks = [desk for _, desk, _ in workers]
        self.workers = [oversight for _, _, oversight in workers]
        self.configs = [config for config, _, _ in workers]
        self.lost = lost  # workers that the parent speaks with no more
        self.next: ServerConfig = keeper.config


def config_of(*models: dict[str, Any], **loading: Any) -> ServerConfig:
    return ServerConfig.model_validate(
        {
            "models": models,
            "loading": loading,
            "api": {"workers": 2, "keys": [{"name": "k", "key": "a-secret"}], "shutdown_grace_s": 1},
        }
    )


@asynccontextmanager
async def office(tmp_path: Path, *models: dict[str, Any], **loading: Any) -> AsyncIterator[Office]:
    config = config_of(*models, **loading)
    keeper = Keeper(config, EngineContext(run_dir=tmp_path))
    await keeper.begin()
    made: list[Office] = []
    reloader = Reloader(config, lambda: made[0].next, keeper)
    context = EngineContext(run_dir=tmp_path, owns_core=False)
    try:
        async with (
            overseeing(keeper, OwnFleet(keeper, reloader), tmp_path),
            keeper.running(),
            AsyncExitStack() as stack,
        ):
            lost: list[int] = []
            entered = (
                overseen(tmp_path, context, 0, on_lost=lambda: lost.append(0)),
                overseen(tmp_path, context, 1, on_lost=lambda: lost.append(1)),
            )
            made.append(Office(keeper, [await stack.enter_async_context(one) for one in entered], lost))
            yield made[0]
            await reloader.close()
    finally:
        await keeper.close(0)


async def test_workers_are_told_what_to_serve(tmp_path: Path) -> None:
    async with office(tmp_path, entry("m", aliases=["other"]), lazy("late")) as work:
        for config, desk in zip(work.configs, work.desks, strict=True):
            assert config.api.keys[0].key is not None
            assert config.api.keys[0].key.get_secret_value() == "a-secret"
            assert await ask(desk.router, "other") == "hello"
        assert list(work.keeper.engines) == ["m"]


async def test_a_model_that_one_worker_asks_for_is_there_for_both(tmp_path: Path) -> None:
    async with office(tmp_path, lazy("late", idle_unload_s=0.3)) as work:
        answers = await asyncio.gather(*(ask(desk.router, "late") for desk in work.desks for _ in range(5)))
        assert set(answers) == {"hello"}
        report = await work.workers[1].report()
        assert report.engines["late"].state == "loaded"
        assert [(one.worker, one.replicas["late"].num_requests) for one in report.workers] == [(0, 5), (1, 5)]
        await until(lambda: not work.keeper.engines)
        assert await ask(work.desks[0].router, "late") == "hello"


async def test_an_operator_at_one_worker_acts_for_all(tmp_path: Path) -> None:
    async with office(tmp_path, entry("m")) as work:
        await work.workers[0].act("drain", ["m"])
        for desk in work.desks:
            with pytest.raises(NotReadyError, match="drained by an operator"):
                await ask(desk.router, "m")
        await work.workers[1].act("restart", ["m"])
        for desk in work.desks:
            assert await ask(desk.router, "m") == "hello"


async def test_a_failed_load_is_told_in_the_other_process(tmp_path: Path) -> None:
    async with office(tmp_path, lazy("late")) as work:
        work.keeper.kept["late"].put_off()
        work.keeper.kept["late"].model = work.keeper.kept["late"].model.model_copy(update={"engine": "nowhere"})
        with pytest.raises(NotReadyError, match="'nowhere' is unknown") as refused:
            await ask(work.desks[0].router, "late")
        assert refused.value.public_code == "model_load_failed"
        assert refused.value.retry_after_s == 5.0


async def test_a_reload_makes_room_and_leaves_no_directories(tmp_path: Path) -> None:
    budget = {"memory_budget": "5GiB"}
    models = [entry("m", memory="1GiB"), *(lazy(name, memory="2GiB") for name in ("a", "b"))]
    async with office(tmp_path, *models, **budget) as work:
        for number in range(2):
            assert await ask(work.desks[0].router, "a") == "hello"
            assert await ask(work.desks[1].router, "b") == "hello"
            work.next = config_of(*models, entry("new", memory="2GiB", max_num_seqs=number + 1), **budget)
            await work.workers[0].reload()
            assert sorted(work.keeper.engines) == ["b", "m", "new"], "who was idle gave way"
            work.next = config_of(*models, **budget)
            await work.workers[1].reload()
            await until(lambda: not list(tmp_path.glob("reload-*")))


async def test_new_models_must_fit_the_budget_of_the_start(tmp_path: Path) -> None:
    async with office(tmp_path, entry("m", memory="1GiB"), memory_budget="2GiB") as work:
        work.next = config_of(entry("m", memory="1GiB"), entry("n", memory="2GiB"), memory_budget="4GiB")
        with pytest.raises(ConfigError, match="as it was at the start"):
            await work.workers[0].reload()
        assert list(work.keeper.engines) == ["m"]


async def test_all_workers_take_a_configuration_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with office(tmp_path, entry("m")) as work:
        _, second = work.desks
        prepare = Desk.prepare
        work.next = config_of(entry("m"), entry("new"))

        async def fail(self: Desk, config: ServerConfig, posts: Any) -> None:
            await prepare(self, config, posts)
            if self is second:
                raise ConfigError("not here")

        monkeypatch.setattr(Desk, "prepare", fail)
        with pytest.raises(ConfigError, match="not here"):
            await work.workers[0].reload()
        for desk in work.desks:
            assert list(desk.engines) == ["m"]
        assert list(work.keeper.engines) == ["m"]
        monkeypatch.setattr(Desk, "prepare", prepare)
        report = await work.workers[1].reload()
        assert (report.started, report.kept) == (["new"], ["m"])
        for desk in work.desks:
            assert await ask(desk.router, "new") == "hello"


async def test_who_dies_is_not_waited_for(tmp_path: Path) -> None:
    async with office(tmp_path, entry("m")) as work:
        work.workers[1]._peer.close()
        await until(lambda: len(work.keeper.desks) == 1)
        work.next = config_of(entry("m"), entry("new"))
        await work.workers[0].reload()
        assert await ask(work.desks[0].router, "new") == "hello"
        with pytest.raises(NotReadyError, match="This server is ending"):
            await work.workers[1].report()
        context = EngineContext(run_dir=tmp_path, owns_core=False)
        async with overseen(tmp_path, context, 1) as (_, desk, _):
            assert list(desk.engines) == ["m", "new"], "its successor serves what is served now"


async def test_who_does_not_answer_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workforce, "_PATIENCE_S", 0.1)
    async with office(tmp_path, entry("m")) as work:

        async def hang(self: Desk, run_dir: str, state: str, reason: str, barred: bool) -> None:
            if self is work.desks[1]:
                await asyncio.sleep(60)

        monkeypatch.setattr(Desk, "mark", hang)
        await work.workers[0].act("drain", ["m"])
        await until(lambda: len(work.keeper.desks) == 1)
        await until(lambda: work.lost == [1])  # in the real command it is killed then, and another one comes


async def test_a_stopped_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its connections the system would still give it new ones."""
    monkeypatch.setattr(workforce, "_PATIENCE_S", 0.2)
    program = """
import asyncio, sys, time
from pathlib import Path
from llm_inference.engine.registry import EngineContext
from llm_inference.serve.workforce import overseen
async def main(run_dir):
    async with overseen(run_dir, EngineContext(run_dir=run_dir, owns_core=False), 0):
        time.sleep(60)
asyncio.run(main(Path(sys.argv[1])))
"""
    keeper = Keeper(config_of(entry("m")), EngineContext(run_dir=tmp_path))
    await keeper.begin()
    async with overseeing(keeper, OwnFleet(keeper, None), tmp_path):
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(tmp_path))
        await until(lambda: len(keeper.desks) == 1, 20)
        await keeper.act("drain", ["m"])
        assert await asyncio.wait_for(worker.wait(), 10) == -signal.SIGKILL
    await keeper.close(0)


async def test_lazy_may_come_and_go_with_a_reload(tmp_path: Path) -> None:
    async with office(tmp_path, lazy("m")) as work:
        work.next = config_of(entry("m"))
        report = await work.workers[0].reload()
        assert report.kept == ["m"]
        assert list(work.keeper.engines) == ["m"], "what is not lazy any more is loaded now"
        work.next = config_of(lazy("m", idle_unload_s=0.1))
        await work.workers[0].reload()
        await until(lambda: not work.keeper.engines)
        for desk in work.desks:
            assert await ask(desk.router, "m") == "hello"


# --- the real command


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path, workers=2) as running:
        yield running


async def asked_of_all(server: Server, model: str, expected: str, times: int = 12) -> None:
    """Each on a connection of its own, so that both workers are asked."""
    for _ in range(times):
        async with aiohttp.ClientSession() as session:
            assert expected in await streamed(session, server.url, model)


@pytest.mark.e2e
async def test_fifty_streams_over_two_workers_outlive_a_reload(server: Server) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        running = [asyncio.create_task(streamed(session, server.url)) for _ in range(50)]
        await asyncio.sleep(0.6)
        server.write({**SLOW, "engine_args": {"delay_s": 0.0}}, {**SLOW, "name": "second"}, workers=2)
        status, report = await http_ask(session, "POST", f"{server.url}/v1/admin/reload", ADMIN, {})
        assert (status, report["started"], report["needs_restart"]) == (200, ["echo", "second"], [])
        await asked_of_all(server, "echo", TEXT)
        assert not any(task.done() for task in running)
        assert set(await asyncio.gather(*running)) == {TEXT}
        _, models = await http_ask(session, "GET", f"{server.url}/v1/admin/models", ADMIN)
        assert [one["worker"] for one in models["workers"]] == [0, 1]
        assert all(set(one["replicas"]) == {"echo", "second"} for one in models["workers"])


@pytest.mark.e2e
async def test_hangup_and_a_wrong_configuration_and_a_killed_worker(server: Server) -> None:
    server.write(SLOW, {**SLOW, "name": "second", "engine_args": {}}, workers=2)
    os.kill(server.process.pid, signal.SIGHUP)
    await asyncio.to_thread(server.wait_for, "reloaded: started second, stopping none, kept echo")
    await asked_of_all(server, "second", TEXT)
    server.config.write_text('{"models": [{"name": "x", "model": "/nowhere", "engine": "native"}]}')
    os.kill(server.process.pid, signal.SIGHUP)
    await asyncio.to_thread(server.wait_for, "the configuration was not taken")
    await asked_of_all(server, "second", TEXT)
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    worker = next(int(pid) for pid in children if b"serve.worker" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(worker, signal.SIGKILL)
    await asyncio.sleep(0.5)
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            _, models = await http_ask(session, "GET", f"{server.url}/v1/admin/models", ADMIN)
            if len(models["workers"]) == 2:
                break
            await asyncio.sleep(0.1)
        assert all(set(one["replicas"]) == {"echo", "second"} for one in models["workers"])
    await asked_of_all(server, "second", TEXT)


@pytest.mark.e2e
async def test_one_load_for_the_first_requests_at_both_workers(server: Server) -> None:
    late = {**SLOW, "name": "late", "lazy": True, "idle_unload_s": 0.5, "engine_args": {"start_delay_s": 0.3}}
    server.write(SLOW, late, workers=2)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        status, _ = await http_ask(session, "POST", f"{server.url}/v1/admin/reload", ADMIN, {})
        assert status == 200
        assert "loading late" not in server.log
        answers = await asyncio.gather(*(streamed(session, server.url, "late") for _ in range(20)))
        assert set(answers) == {TEXT}
        assert server.log.count("loading late") == 1
        await asyncio.to_thread(server.wait_for, "unloaded late, which nobody used")
        assert await streamed(session, server.url, "late") == TEXT
        status, reply = await http_ask(session, "POST", f"{server.url}/v1/admin/models/drain", USER, {"model": "late"})
        assert status == 403
        status, reply = await http_ask(session, "POST", f"{server.url}/v1/admin/models/drain", ADMIN, {"model": "late"})
        assert (status, reply["replicas"]["late"]["state"]) == (200, "draining")
        for _ in range(8):
            refused = json.loads(await streamed(session, server.url, "late"))
            assert refused["error"]["code"] == "model_unavailable"
