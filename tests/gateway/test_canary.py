from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from llm_inference.engine.base import Health
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.held import hold
from llm_inference.engine.types import Delta, GenerateRequest
from llm_inference.errors import EngineError
from llm_inference.gateway import canary
from llm_inference.gateway.canary import Canary
from llm_inference.telemetry.metrics import Metrics
from tests.gateway.serving import serving


class Broken(FakeEngine):
    """Fails in `how`'s way at every request."""

    def __init__(self, how: str) -> None:
        super().__init__("m")
        self.how = how

    async def generate(self, request: GenerateRequest) -> Any:
        if self.how == "hangs":
            await asyncio.sleep(60)
        if self.how == "defect":
            raise ValueError("a defect")
        raise EngineError("The engine is ill.")
        yield Delta()


async def ask(engine: FakeEngine) -> tuple[Canary, CollectorRegistry]:
    registry = CollectorRegistry()
    one = Canary(lambda: {"m": engine}, Metrics(registry), {})
    await one.round()
    return one, registry


async def test_a_healthy_engine_gives_its_token() -> None:
    engine = FakeEngine("m")
    await engine.start()
    one, registry = await ask(engine)
    assert one.results["m"].ok
    assert one.results["m"].reason == ""
    assert engine.stats().generation_tokens == 1
    assert registry.get_sample_value("llm_inference_canary_runs_total", {"model": "m", "outcome": "ok"}) == 1


@pytest.mark.parametrize(
    ("how", "reason"),
    [("refuses", "The engine is ill."), ("defect", "ValueError: a defect"), ("hangs", "no token within 0.05 s")],
)
async def test_an_ill_engine_is_told_of(how: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "TIMEOUT_S", 0.05)
    one, registry = await ask(Broken(how))
    assert not one.results["m"].ok
    assert one.results["m"].reason == reason
    assert registry.get_sample_value("llm_inference_canary_runs_total", {"model": "m", "outcome": "failed"}) == 1


async def test_it_follows_a_reload() -> None:
    """Engines that came are asked, of those that went nothing is kept, and an error on their way out does not count."""
    registry = CollectorRegistry()
    engines: dict[str, FakeEngine] = {"m": FakeEngine("m"), "gone": FakeEngine("gone")}
    for engine in engines.values():
        await engine.start()
    one = Canary(lambda: engines, Metrics(registry), {})
    await one.round()
    assert one.results.keys() == {"m", "gone"}

    class Leaving(FakeEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            del engines["m"], engines["gone"]
            engines["new"] = FakeEngine("new")
            await engines["new"].start()
            raise EngineError("The engine is stopped.")
            yield Delta()

    engines["m"] = Leaving("m")
    await one.round()
    assert one.results == {}
    labels = {"model": "m", "outcome": "failed"}
    assert registry.get_sample_value("llm_inference_canary_runs_total", labels) is None
    assert registry.get_sample_value("llm_inference_canary_runs_total", {"model": "gone", "outcome": "ok"}) == 1
    await one.round()
    assert one.results.keys() == {"new"}
    assert one.results["new"].ok


async def test_a_round_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine("m")
    await engine.start()
    calls = 0

    def engines() -> dict[str, FakeEngine]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("the table is being changed")
        return {"m": engine}

    one = Canary(engines, Metrics(CollectorRegistry()), {})
    running = asyncio.create_task(one.run(0.01))
    while "m" not in one.results:
        await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert one.results["m"].ok
    assert "a round of the canary failed" in caplog.text


async def test_who_works_is_left_alone() -> None:
    engine = FakeEngine("m", script=FakeScript(delay_s=0.05))
    await engine.start()
    working = asyncio.create_task(drain(engine))
    while engine.stats().num_running == 0:
        await asyncio.sleep(0.001)
    one, _ = await ask(engine)
    assert one.results == {}
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def drain(engine: FakeEngine) -> None:
    async for _ in engine.generate(GenerateRequest(request_id="r", model="m", prompt="x")):
        pass


async def test_health_in_detail() -> None:
    async with serving() as service:
        await service.chat()
        service.app.state.gateway.canary_results["fake"] = canary.CanaryResult(False, 0.5, 1.0, "no token")
        report = (await service.get("/health/detail")).json
        assert report["status"] == "ok"
        assert report["in_flight"] == 0
        assert report["uptime_s"] > 0
        model = report["models"]["fake"]
        assert (model["engine"], model["ready"], model["num_running"], model["num_steps"]) == ("fake", True, 0, 5)
        assert model["canary"]["reason"] == "no token"
        service.engine.health_now = Health(live=True, ready=False, progressing=False, reason="no step for 90 s")
        reply = await service.get("/health/detail")
        assert reply.status == 200
        assert reply.json["status"] == "stalled"
        assert reply.json["models"]["fake"]["reason"] == "no step for 90 s"


async def test_detail_needs_a_key_where_there_are_keys() -> None:
    async with serving(api_keys=("secret",)) as service:
        assert (await service.get("/health/detail")).status == 401
        assert (await service.get("/health")).status == 200


async def test_what_is_loaded_when_it_is_asked_for_is_left_alone() -> None:
    async def wake() -> None:
        raise AssertionError("the canary loads nothing")

    lazy, drained, there = FakeEngine("lazy"), hold(FakeEngine("drained")), hold(FakeEngine("there"))
    drained.mark("draining", barred=True)
    engines = {
        "unloaded": hold(FakeEngine("lazy"), state="unloaded", wake=wake),
        "loaded": hold(lazy, wake=wake),
        "drained": drained,
        "there": there,
    }
    one = Canary(lambda: engines, Metrics(CollectorRegistry()), {})
    await one.round()
    assert list(one.results) == ["there"]
    assert lazy.requests == [], "it would be kept loaded by the canary"
