"""Routing through the real HTTP application, with fake engines behind it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.errors import EngineError, OverloadedError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.table import RoutingTable
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.serve.routing import replica_ids, routing_table
from tests.gateway.serving import Service, official, serving, until


def entry(**keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "fake", "model": "any", "engine": "fake", **keys})


class Fleet:
    """The engines of some entries, by replica id."""

    def __init__(self, *entries: ModelConfig) -> None:
        self.entries = entries
        self.engines = {one: FakeEngine(model.name) for model in entries for one in replica_ids(model)}

    def __getitem__(self, replica_id: str) -> FakeEngine:
        return self.engines[replica_id]

    @property
    def all(self) -> tuple[FakeEngine, ...]:
        return tuple(self.engines.values())

    @property
    def table(self) -> RoutingTable:
        engines: dict[str, Engine] = {**self.engines}
        return routing_table(self.entries, engines)

    @asynccontextmanager
    async def served(self, **settings: Any) -> AsyncIterator[Service]:
        router = Router(self.table)
        async with serving(router=router, **settings) as service:
            try:
                yield service
            finally:
                await router.close()


TIERS = (
    entry(tier="golden", precision="float32", routing={"max_in_flight": 1}),
    entry(tier="int8", precision="int8"),
    entry(tier="int4", precision="int4"),
)


async def test_one_engine_is_named_too() -> None:
    async with serving() as service:
        reply = await service.chat()
        assert reply.headers["x-served-by"] == "fake"
        assert "service_tier" not in reply.json
        assert (await service.chat(service_tier="auto")).status == 200
        refused = await service.chat(service_tier="flex")
        assert (refused.status, refused.error["param"]) == (400, "service_tier")


@pytest.mark.parametrize("stream", [False, True])
async def test_replicas_share_requests_and_say_who_they_are(stream: bool) -> None:
    fleet = Fleet(entry(replicas=3, routing={"policy": "round_robin"}))
    async with fleet.served() as service:
        seen = Counter([(await service.chat(stream=stream)).headers["x-served-by"] for _ in range(9)])
        assert seen == {"fake#0": 3, "fake#1": 3, "fake#2": 3}
        several = await service.complete(prompt=["a", "b", "c"], stream=stream)
        assert sorted(several.headers["x-served-by"].split(",")) == ["fake#0", "fake#1", "fake#2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_not_seen(stream: bool) -> None:
    fleet = Fleet(entry(replicas=2))
    fleet["fake#0"].script = FakeScript(fail_after=0, first_delay_s=0.005)
    async with fleet.served() as service:
        reply = await service.chat(stream=stream)
        assert reply.headers["x-served-by"] == "fake#1"
        if stream:
            assert reply.events[-1] == "[DONE]"
            assert sum(bool(event["choices"][0]["finish_reason"]) for event in reply.events[:-1]) == 1
        else:
            assert reply.json["choices"][0]["message"]["content"] == "hello"
        await service.idle()


async def test_a_failure_after_the_first_token_is_one_error_event() -> None:
    fleet = Fleet(entry(replicas=2))
    fleet["fake#0"].script = FakeScript(fail_after=2)
    async with fleet.served() as service:
        events = (await service.chat(stream=True)).events
        assert [event for event in events if "error" in event] == [events[-1]]
        assert events[-1]["error"]["code"] == "server_error"
        assert fleet["fake#1"].requests == []
        await service.idle()


async def test_what_is_left_is_the_error_with_its_retry_after() -> None:
    fleet = Fleet(entry(replicas=2))
    fleet["fake#0"].script = FakeScript(fail_after=0, error=OverloadedError("full", retry_after_s=17))
    fleet["fake#1"].script = FakeScript(fail_after=0, error=EngineError("died"))
    async with fleet.served() as service:
        reply = await service.chat(stream=True)
        assert (reply.status, reply.headers["retry-after"]) == (503, "17")
        assert reply.error["code"] == "overloaded"


@pytest.mark.parametrize("stream", [False, True])
async def test_each_try_has_its_own_time(stream: bool) -> None:
    fleet = Fleet(entry(replicas=2, routing={"attempt_timeout_s": 0.03}))
    fleet["fake#0"].script = FakeScript(first_delay_s=60)
    async with fleet.served() as service:
        assert (await service.chat(stream=stream)).headers["x-served-by"] == "fake#1"
        fleet["fake#1"].script = FakeScript(first_delay_s=60)
        reply = await service.chat(stream=stream)
        assert (reply.status, reply.error["code"]) == (504, "attempt_timeout")
        await service.idle()
        assert all(len(engine.aborted) == len(engine.requests) - len(engine.finished) for engine in fleet.all)


async def test_the_total_deadline_stands_above_the_tries() -> None:
    fleet = Fleet(entry(replicas=2, routing={"attempt_timeout_s": 0.2}))
    for engine in fleet.all:
        engine.script = FakeScript(first_delay_s=60)
    async with fleet.served(request_timeout_s=0.05) as service:
        reply = await service.chat()
        assert (reply.status, reply.error["code"]) == (504, "request_timeout")
        await service.idle()


async def test_a_client_that_leaves_frees_the_replica() -> None:
    fleet = Fleet(entry(replicas=2))
    fleet["fake#0"].script = FakeScript(hang_after=1)
    async with fleet.served() as service:
        body = {"model": "fake", "prompt": "hello", "stream": True}
        async with service.session.post(f"{service.url}/v1/completions", json=body) as reply:
            await reply.content.readline()
            replica = next(service.app.state.gateway.router.replicas())
            assert replica.in_flight == 1
        await until(lambda: fleet["fake#0"].aborted)
        await service.idle()
        assert (replica.in_flight, replica.outstanding_tokens) == (0, 0)


async def test_names_versions_and_aliases_are_listed_and_found() -> None:
    fleet = Fleet(
        entry(version="v1", weight=1, aliases=["default"]),
        entry(version="v2", weight=0),
        ModelConfig.model_validate({"name": "other", "model": "any", "engine": "fake"}),
    )
    async with fleet.served() as service:
        listed = [card["id"] for card in (await service.get("/v1/models")).json["data"]]
        assert listed == ["fake", "other", "fake@v1", "fake@v2"]
        assert (await service.get("/v1/models/fake@v2")).json["id"] == "fake@v2"
        assert (await service.get("/v1/models/fake@v3")).status == 404
        for said, served in (("fake", "v1"), ("default", "v1"), ("fake@v1", "v1"), ("fake@v2", "v2")):
            reply = await service.chat(model=said)
            assert reply.headers["x-served-by"] == f"fake@{served}"
            assert reply.json["model"] == "fake"
        assert (await service.chat(model="fake@v3")).error["code"] == "model_not_found"


async def test_a_session_keeps_its_version_by_header_or_user() -> None:
    fleet = Fleet(entry(version="v1"), entry(version="v2"))
    async with fleet.served() as service:
        by_session = Counter()
        for number in range(12):
            seen = set()
            for _ in range(3):
                reply = await service.chat(user="somebody", model="fake")
                headers = {"x-session-id": f"session {number}"}
                body = {"model": "fake", "prompt": "x", "user": "somebody"}
                seen.add((await service.post("/v1/completions", body, headers=headers)).headers["x-served-by"])
                by_session[reply.headers["x-served-by"]] += 1
            assert len(seen) == 1
        assert len(by_session) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_tiers_are_chosen_and_named(stream: bool) -> None:
    fleet = Fleet(*TIERS)
    async with fleet.served() as service:
        for asked, served in ((None, "golden"), ("auto", "golden"), ("int8", "int8"), ("int4", "int4")):
            reply = await service.chat(service_tier=asked, stream=stream)
            assert reply.headers["x-served-by"] == f"fake:{served}"
            bodies = reply.events[:-1] if stream else [reply.json]
            assert {body["service_tier"] for body in bodies} == {served}
        text = await service.complete(service_tier="int4", stream=stream)
        assert {body["service_tier"] for body in (text.events[:-1] if stream else [text.json])} == {"int4"}
        refused = await service.chat(service_tier="priority", stream=stream)
        assert (refused.status, refused.error["param"]) == (400, "service_tier")
        assert "golden, int8, int4" in refused.error["message"]


async def test_the_official_client_reads_and_sets_the_tier() -> None:
    async with Fleet(*TIERS).served() as service, official(service) as client:
        answer = await client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "x"}], extra_body={"service_tier": "int8"}
        )
        assert answer.service_tier == "int8"


async def test_a_full_tier_spills_over_and_says_so() -> None:
    fleet = Fleet(*TIERS)
    fleet["fake:golden"].script = FakeScript(hang_after=1)
    async with fleet.served() as service:
        body = {"model": "fake", "prompt": "hello", "stream": True}
        async with service.session.post(f"{service.url}/v1/completions", json=body) as first:
            assert first.headers["x-served-by"] == "fake:golden"
            reply = await service.chat()
            assert (reply.headers["x-served-by"], reply.json["service_tier"]) == ("fake:int8", "int8")


async def test_keys_have_tiers() -> None:
    keys = KeyRing([ApiKey(id="k", name="k", digest=digest_of("secret"), scope=Scope(tiers=("int*",)))])
    async with Fleet(*TIERS).served(tenants=Tenants(keys=keys)) as service:
        headers = {"authorization": "Bearer secret"}
        body = {"model": "fake", "prompt": "x"}
        assert (await service.post("/v1/completions", body, headers=headers)).json["service_tier"] == "int8"
        refused = await service.post("/v1/completions", {**body, "service_tier": "golden"}, headers=headers)
        assert (refused.status, refused.error["code"]) == (403, "permission_denied")


async def test_the_log_line_names_tier_and_replica(caplog: pytest.LogCaptureFixture) -> None:
    async with Fleet(*TIERS).served() as service:
        with caplog.at_level(logging.INFO, "llm_inference.gateway.request"):
            await service.chat(service_tier="int8")
        fields = caplog.records[-1].fields  # type: ignore[attr-defined]
        assert (fields["model"], fields["tier"], fields["replica"]) == ("fake", "int8", "fake:int8")


async def test_a_deliberately_bad_tier_is_demoted_by_itself() -> None:
    rules = {"agreement": {"sample": 1, "threshold": 0.9, "min_samples": 3, "window": 10, "restore_after": 3}}
    fleet = Fleet(entry(tier="golden", precision="float32"), entry(tier="int4", precision="int4", routing=rules))
    fleet["fake:int4"].script = FakeScript(answers=["wrong tokens"])
    async with fleet.served() as service:
        group = service.app.state.gateway.router.table.groups["fake"]
        for _ in range(3):
            reply = await service.chat(service_tier="int4", temperature=0)
            assert reply.json["choices"][0]["message"]["content"] == "wrong tokens"
            await until(lambda: group.shadowing._worker.done())
        reply = await service.chat(service_tier="int4", temperature=0)
        assert (reply.json["service_tier"], reply.json["choices"][0]["message"]["content"]) == ("golden", "hello")
        figures = (await service.get("/metrics")).text
        assert 'llm_inference_golden_agreement_ratio{model="fake",tier="int4"} 0.0' in figures
        assert 'llm_inference_replica_available{model="fake",replica="fake:golden"} 1.0' in figures
        assert group.restore("int4")
        assert (await service.chat(service_tier="int4")).json["service_tier"] == "int4"


async def test_shadow_copies_cost_the_user_nothing() -> None:
    fleet = Fleet(entry(version="v1"), entry(version="v2", shadow=1.0))
    fleet["fake@v2"].script = FakeScript(hang_after=0)
    async with fleet.served() as service:
        replies = await asyncio.gather(*(service.chat() for _ in range(20)))
        assert {reply.headers["x-served-by"] for reply in replies} == {"fake@v1"}
        assert len(fleet["fake@v2"].requests) == 8
        await service.idle()


async def test_a_table_is_replaced_under_open_streams() -> None:
    """50 streams that began before go on to their ends; whoever comes after is answered by the new engines."""
    old, new = Fleet(entry(replicas=2)), Fleet(entry(version="v2", replicas=2))
    for engine in old.all:
        engine.script = FakeScript(answers=["abcdefghij"], delay_s=0.01)
        engine.info = type(engine.info)(name="fake", max_model_len=4096, engine="fake")
    async with old.served() as service:
        streams = [asyncio.create_task(service.chat(stream=True)) for _ in range(50)]
        await until(lambda: sum(len(engine.requests) for engine in old.all) == 50)
        replaced = service.app.state.gateway.router.replace(new.table)
        assert (await service.chat()).headers["x-served-by"].startswith("fake@v2#")
        for reply in await asyncio.gather(*streams):
            text = "".join(event["choices"][0]["delta"].get("content", "") for event in reply.events[:-1])
            assert (text, reply.events[-1]) == ("abcdefghij", "[DONE]")
            assert reply.headers["x-served-by"] in ("fake#0", "fake#1")
        assert all(replica.in_flight == 0 for replica in replaced.replicas())


async def test_health_and_loads_know_the_replicas() -> None:
    fleet = Fleet(entry(replicas=2))
    async with fleet.served() as service:
        await fleet["fake#0"].stop(0)
        report = await service.get("/health")
        assert report.status == 200
        assert json.loads(report.text)["models"]["fake"]["reason"] == "fake#0: stopped"
        await fleet["fake#1"].stop(0)
        assert (await service.get("/health")).status == 503
        assert set(service.app.state.gateway.engines()) == {"fake#0", "fake#1"}


async def test_the_details_of_several_replicas_are_those_of_all() -> None:
    async with Fleet(entry(replicas=2)).served() as service:
        detail = (await service.get("/health/detail")).json["models"]["fake"]
        assert (detail["engine"], detail["ready"], detail["num_running"]) == ("fake", True, 0)


async def test_embeddings_and_tokens_go_through_routing() -> None:
    async with Fleet(entry(replicas=2)).served() as service:
        vectors = await service.post("/v1/embeddings", {"model": "fake", "input": ["a", "b"]})
        assert len(vectors.json["data"]) == 2
        assert vectors.headers["x-served-by"] == "fake#0"
        assert (await service.post("/tokenize", {"model": "fake", "prompt": "ab"})).json["count"] >= 2
