"""The route over an engine that plays its profile."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from llm_inference.engine.fake import FakeEngine
from llm_inference.errors import OverloadedError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.telemetry.profiling.figures import (
    FrontFigures,
    Profile,
    ProfileOrder,
    ProfileResult,
    StepFigures,
    TraceFigures,
)
from tests.gateway.serving import Service, serving

OPERATOR = ApiKey("k_o", "operator", digest_of("o"), scope=Scope(routes=("inference", "models", "admin")))
TRACE = b"\x1f\x8b packed"


class Profiled(FakeEngine):
    """Says what it was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.orders: list[ProfileOrder] = []
        self.error: Exception | None = None

    async def profile(self, order: ProfileOrder) -> ProfileResult:
        self.orders.append(order)
        if self.error is not None:
            raise self.error
        profile = Profile(
            trace=TraceFigures(wall_s=1.0, seconds={"waiting": 0.9, "linear": 0.1}),
            steps=StepFigures(runner="played", num_steps=order.num_steps),
            front=FrontFigures(wall_s=1.0, seconds={"tokenizer": 0.8}, num_prepared=2, loop_cpu_s=0.1),
        )
        return ProfileResult(profile=profile, trace_gz=TRACE)


async def ask(service: Service, **body: Any) -> Any:
    return await service.post("/v1/admin/profile", body, headers={"authorization": "Bearer o"})


async def test_figures_findings_and_words() -> None:
    engine = Profiled("fake")
    async with serving(engine=engine, tenants=Tenants(keys=KeyRing((OPERATOR,)))) as service:
        reply = await ask(service, steps=7, seconds=2)
        assert reply.status == 200, reply.text
        assert engine.orders == [ProfileOrder(num_steps=7, max_s=2.0)]
        report = reply.json
        assert (report["model"], report["replica"], report["trace_gz"]) == ("fake", "fake", None)
        assert report["findings"][0]["kind"] == "tokenizer"
        assert report["text"][0] == "Likely bottleneck: tokenizer and CPU work"
        assert report["profile"]["steps"]["num_steps"] == 7
        reply = await ask(service, trace=True, replica="fake", model="fake")
        assert base64.b64decode(reply.json["trace_gz"]) == TRACE


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 101}, "steps"),
        ({"steps": True}, "steps"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": 61}, "seconds"),
        ({"replica": "no such"}, "replica"),
        ({"stepps": 1}, "stepps"),
    ],
)
async def test_what_is_wrong_is_named(body: dict[str, Any], field: str) -> None:
    engine = Profiled("fake")
    async with serving(engine=engine, tenants=Tenants(keys=KeyRing((OPERATOR,)))) as service:
        reply = await ask(service, **body)
        assert (reply.status, reply.error["param"]) == (400, field)
        assert engine.orders == []


async def test_engines_that_have_no_profile() -> None:
    async with serving(tenants=Tenants(keys=KeyRing((OPERATOR,)))) as service:
        reply = await ask(service)
        assert (reply.status, reply.error["param"]) == (400, "model")
        assert "fake runs on fake" in reply.error["message"]
        assert (await ask(service, model="absent")).status == 404


async def test_another_one_is_running() -> None:
    engine = Profiled("fake")
    engine.error = OverloadedError("another profile of this model is running; wait for it", retry_after_s=3)
    async with serving(engine=engine, tenants=Tenants(keys=KeyRing((OPERATOR,)))) as service:
        reply = await ask(service)
        assert (reply.status, reply.headers["retry-after"]) == (503, "3")
