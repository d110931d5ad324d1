from __future__ import annotations

import asyncio

import pytest

from llm_inference.engine.base import Health
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.gateway import health as health_module
from llm_inference.gateway.admission.rules import AdmissionRules
from llm_inference.version import __version__
from tests.gateway.serving import serving, until

GOOD = Health(live=True, ready=True)
RESTARTING = Health(live=True, ready=False, reason="restart 1 of 3")
DEAD = Health(live=False, ready=False, reason="restart budget spent")
STALLED = Health(live=True, ready=True, progressing=False, reason="no step for 60 s")


@pytest.mark.parametrize(
    ("states", "alive", "status", "ready"),
    [
        ((GOOD, GOOD), 200, "ok", 200),
        ((GOOD, RESTARTING), 200, "restarting", 200),
        ((RESTARTING, RESTARTING), 200, "restarting", 503),
        ((GOOD, DEAD), 503, "dead", 200),
        ((DEAD, DEAD), 503, "dead", 503),
        ((STALLED, GOOD), 503, "stalled", 200),
    ],
)
async def test_states(states: tuple[Health, Health], alive: int, status: str, ready: int) -> None:
    other = FakeEngine("other")
    async with serving(others={"other": other}) as service:
        service.engine.health_now, other.health_now = states
        reply = await service.get("/health")
        assert (reply.status, reply.json["status"]) == (alive, status)
        assert reply.json["models"]["fake"] == {
            "live": states[0].live,
            "ready": states[0].ready,
            "progressing": states[0].progressing,
            "reason": states[0].reason,
        }
        reply = await service.get("/ready")
        assert (reply.status, reply.json["status"]) == (ready, "ok" if ready == 200 else "not_ready")


async def test_engine_that_does_not_answer_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_module, "_HEALTH_TIMEOUT_S", 0.05)

    class Hanging(FakeEngine):
        async def health(self) -> Health:
            await asyncio.sleep(60)
            return GOOD

    class Failing(FakeEngine):
        async def health(self) -> Health:
            raise OSError("no socket")

    async with serving(others={"hanging": Hanging("hanging")}) as service:
        reply = await service.get("/health")
        assert (reply.status, reply.json["status"]) == (503, "stalled")
        assert (await service.get("/ready")).status == 200
    async with serving(others={"failing": Failing("failing")}) as service:
        reply = await service.get("/health")
        assert (reply.status, reply.json["status"]) == (503, "dead")
        assert "no socket" in reply.json["models"]["failing"]["reason"]


async def test_warm_up_holds_readiness_back() -> None:
    async with serving(aliases={"other name": "fake"}) as service:
        gateway = service.app.state.gateway
        gateway.begin_warm_up()
        ready = await service.get("/ready")
        assert (ready.status, ready.json["status"]) == (503, "warming_up")
        alive = await service.get("/health")
        assert (alive.status, alive.json["status"]) == (200, "warming_up")
        assert (await service.chat(model="other name")).json["model"] == "fake"
        gateway.end_warm_up()
        assert (await service.get("/ready")).status == 200


async def test_version_and_head() -> None:
    async with serving() as service:
        assert (await service.get("/version")).json == {"version": __version__}
        for path in ("/health", "/ready", "/version", "/metrics"):
            reply = await service.request("HEAD", path)
            assert (reply.status, reply.text) == (200, "")


async def test_metrics_of_requests_and_engine() -> None:
    async with serving() as service:
        await service.chat()
        await service.chat(model="made-up-by-a-client")
        await service.get("/made/up/by/a/client")
        text = await service.metrics()
        assert 'llm_inference_requests_total{model="fake",route="/v1/chat/completions",status="200"} 1.0' in text
        assert 'llm_inference_requests_total{model="",route="/v1/chat/completions",status="404"} 1.0' in text
        assert "made" not in text
        assert 'llm_inference_completion_tokens_total{model="fake"} 5.0' in text
        assert 'llm_inference_time_to_first_token_seconds_count{model="fake"} 1.0' in text
        assert 'llm_inference_inter_token_latency_seconds_count{model="fake"} 4.0' in text
        assert "llm_inference_requests_in_flight 0.0" in text
        assert 'llm_inference_num_requests_running{model="fake"} 0.0' in text
        assert 'llm_inference_engine_steps_total{model="fake"} 5.0' in text


async def test_who_waits_at_the_door_and_who_is_turned_away_are_metrics() -> None:
    rules = AdmissionRules(max_queue_requests=1, max_wait_s=30.0)
    script = FakeScript(answers=["a long answer of many words"], delay_s=0.05)
    async with serving(script, admission=rules, max_concurrent_requests=1) as service:
        first = asyncio.create_task(service.chat())
        await until(lambda: service.app.state.gateway.admission.in_flight == 1)
        second = asyncio.create_task(service.chat())
        await until(lambda: service.app.state.gateway.admission.num_waiting == 1)
        text = await service.metrics()
        assert "llm_inference_admission_queue_depth 1.0" in text
        assert "llm_inference_requests_in_flight 1.0" in text
        refused = await service.chat()
        assert refused.status in (429, 503)
        code = refused.error["code"]
        assert f'llm_inference_rejections_total{{reason="{code}"}} 1.0' in await service.metrics()
        assert [reply.status for reply in await asyncio.gather(first, second)] == [200, 200]
        assert "llm_inference_admission_queue_depth 0.0" in await service.metrics()
    async with serving() as service:
        assert "admission_queue_depth" not in await service.metrics()
