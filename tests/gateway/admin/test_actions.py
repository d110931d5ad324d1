"""The operator's routes over a fleet that only notes what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llm_inference.engine.fake import FakeEngine
from llm_inference.errors import ConfigError, NotReadyError
from llm_inference.gateway.admin.fleet import Action, EngineState, FleetReport, ReloadReport, ReplicaLoad, WorkerReport
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.routing.deployment import Deployment
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.tenants import Tenants
from tests.gateway.routing.groups import group, replicas, router
from tests.gateway.serving import Reply, Service, serving

ADMIN = {"authorization": "Bearer operator"}
USER = {"authorization": "Bearer user"}
ACTIONS: tuple[Action, ...] = ("load", "unload", "restart", "drain")


class NotedFleet:
    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.error: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

    async def reload(self) -> ReloadReport:
        raise ConfigError("no file")

    async def act(self, action: Action, replicas: Sequence[str]) -> None:
        self.asked.append((action, list(replicas)))
        await self.go.wait()
        if self.error is not None:
            raise self.error

    async def report(self) -> FleetReport:
        state = EngineState("draining", "as told", 1.5, True, 2**30, 2**20)
        loads = {"chat#0": ReplicaLoad(2, 30, 4, 0.0)}
        return FleetReport(
            {"chat#0": state, "chat#1": state}, [WorkerReport(0, 3, 1, loads), WorkerReport(1, 2, 0, loads)]
        )


def tenants() -> Tenants:
    keys = [
        ApiKey(id="op", name="op", digest=digest_of("operator"), scope=Scope(routes=("models", "admin"))),
        ApiKey(
            id="other", name="other", digest=digest_of("other"), scope=Scope(routes=("models", "admin"), models=("x*",))
        ),
        ApiKey(id="user", name="user", digest=digest_of("user")),
    ]
    return Tenants(keys=KeyRing(keys))


class Desk:
    """A service with two replicas of `chat`, and its fleet."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.fleet = NotedFleet()
        service.app.state.gateway.fleet = self.fleet

    async def act(self, action: str, headers: dict[str, str] = ADMIN, **body: object) -> Reply:
        return await self.service.post(f"/v1/admin/models/{action}", {"model": "chat", **body}, headers=headers)


def served() -> object:
    return serving(router=router(group(Deployment(replicas("chat#0", "chat#1")))), tenants=tenants())


@pytest.mark.parametrize("action", ACTIONS)
async def test_all_replicas_of_a_model_or_one(action: Action) -> None:
    async with served() as service:  # type: ignore[attr-defined]
        desk = Desk(service)
        reply = await desk.act(action)
        assert reply.status == 200, reply.text
        assert set(reply.json["replicas"]) == {"chat#0", "chat#1"}
        assert reply.json["replicas"]["chat#0"] == {
            "state": "draining",
            "reason": "as told",
            "since_s": 1.5,
            "lazy": True,
            "memory_bytes": 2**30,
            "resident_bytes": 2**20,
        }
        assert list((await desk.act(action, replica="chat#1")).json["replicas"]) == ["chat#1"]
        assert desk.fleet.asked == [(action, ["chat#0", "chat#1"]), (action, ["chat#1"])]


async def test_what_is_wrong_is_said() -> None:
    async with served() as service:  # type: ignore[attr-defined]
        desk = Desk(service)
        wrong = await desk.act("load", replica="other#0")
        assert (wrong.status, wrong.error["param"]) == (400, "replica")
        assert (await desk.act("load", model="nobody")).error["code"] == "model_not_found"
        assert (await desk.act("load", wait="yes")).error["param"] == "wait"
        assert desk.fleet.asked == []
        desk.fleet.error = NotReadyError("the file is gone", code="model_load_failed", retry_after_s=5)
        failed = await desk.act("load")
        assert (failed.status, failed.error["code"], failed.headers["retry-after"]) == (503, "model_load_failed", "5")
        reload = await service.post("/v1/admin/reload", {}, headers=ADMIN)
        assert (reload.status, "no file" in reload.error["message"]) == (400, True)


async def test_without_waiting_and_after_the_client_has_left() -> None:
    async with served() as service:  # type: ignore[attr-defined]
        desk = Desk(service)
        desk.fleet.go.clear()
        reply = await desk.act("restart", wait=False)
        assert reply.status == 200
        leaving = asyncio.create_task(desk.act("drain"))
        while len(desk.fleet.asked) < 2:
            await asyncio.sleep(0.005)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert len(service.app.state.gateway.acting) == 2
        desk.fleet.go.set()
        while service.app.state.gateway.acting:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("action", ACTIONS)
async def test_only_an_operator_may(action: Action) -> None:
    async with served() as service:  # type: ignore[attr-defined]
        desk = Desk(service)
        for headers, status in (({}, 401), ({"authorization": "Bearer wrong"}, 401), (USER, 403)):
            assert (await desk.act(action, headers)).status == status
        assert desk.fleet.asked == []
    async with serving() as service:
        assert (await service.post(f"/v1/admin/models/{action}", {"model": "fake"})).status == 403


async def test_the_list_is_of_all_workers() -> None:
    async with served() as service:  # type: ignore[attr-defined]
        Desk(service)
        report = (await service.get("/v1/admin/models", headers=ADMIN)).json
        [chat] = report["models"]
        first, second = chat["replicas"]
        assert (first["id"], first["state"], first["in_flight"], first["num_requests"]) == ("chat#0", "draining", 4, 8)
        assert (second["in_flight"], second["num_waiting"], second["lazy"]) == (0, 0, True)
        assert [(one["worker"], one["in_flight"], one["num_waiting"]) for one in report["workers"]] == [
            (0, 3, 1),
            (1, 2, 0),
        ]


async def test_a_gateway_alone_says_that_it_keeps_nothing() -> None:
    async with serving(tenants=tenants(), engine=FakeEngine("chat")) as service:
        reply = await service.post("/v1/admin/models/load", {"model": "chat"}, headers=ADMIN)
        assert reply.status == 400
        report = (await service.get("/v1/admin/models", headers=ADMIN)).json
        assert report["models"][0]["replicas"][0]["state"] == "loaded"


async def test_a_key_of_other_models_neither_sees_nor_moves_this_one() -> None:
    async with served() as service:  # type: ignore[attr-defined]
        desk = Desk(service)
        other = {"authorization": "Bearer other"}
        for action in ACTIONS:
            reply = await desk.act(action, headers=other)
            assert (reply.status, reply.json["error"]["code"]) == (404, "model_not_found")
        for path, body in (("tiers/restore", {"model": "chat", "tier": "t"}), ("profile", {"model": "chat"})):
            assert (await service.post(f"/v1/admin/{path}", body, headers=other)).status == 404
        assert desk.fleet.asked == []
        report = (await service.get("/v1/admin/models", headers=other)).json
        assert report["models"] == []
        assert [worker["replicas"] for worker in report["workers"]] == [{}, {}]
