from __future__ import annotations

import asyncio

from llm_inference.engine.base import Health
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.version import __version__
from tests.gateway.serving import MESSAGES, serving, until


def key(secret: str, **scope: object) -> ApiKey:
    return ApiKey(f"k_{secret}", secret, digest_of(secret), scope=Scope(**scope))  # type: ignore[arg-type]


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def test_state_load_and_figures() -> None:
    async with serving() as service:
        for _ in range(3):
            await service.chat()
        await service.chat(model="unknown")
        reply = await service.get("/status.json")
        assert reply.headers["cache-control"] == "no-store"
        status = reply.json
        assert (status["status"], status["version"]) == ("ok", __version__)
        assert (status["in_flight"], status["max_concurrent_requests"]) == (0, 512)
        model = status["models"]["fake"]
        assert (model["live"], model["ready"], model["engine"], model["max_model_len"]) == (True, True, "fake", 4096)
        # "hello" is five tokens, one per byte
        assert model["load"]["generation_tokens"] == 15
        assert model["load"]["num_running"] == 0
        assert (model["recent"]["num_requests"], model["recent"]["completion_tokens"]) == (3, 15)
        assert 0 < model["recent"]["ttft_s"]["p50"] <= model["recent"]["total_s"]["p99"]
        assert (status["recent"]["num_requests"], status["recent"]["num_errors"]) == (4, 1)
        [error] = status["errors"]
        assert (error["status"], error["code"], error["model"]) == (404, "model_not_found", "")
        assert error["route"] == "/v1/chat/completions"


async def test_what_runs_and_what_is_ill() -> None:
    async with serving(FakeScript(hang_after=2)) as service:
        asking = asyncio.create_task(service.chat(stream=True))
        await until(lambda: service.engine.stats().num_running == 1)
        service.engine.health_now = Health(live=True, ready=True, progressing=False, reason="no step for 60 s")
        status = (await service.get("/status.json")).json
        assert (status["status"], status["in_flight"]) == ("stalled", 1)
        assert status["models"]["fake"]["load"]["num_running"] == 1
        assert status["models"]["fake"]["reason"] == "no step for 60 s"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await service.idle()


async def test_a_key_sees_its_models_and_its_own_errors() -> None:
    keys = (key("all"), key("one", models=("fake",)), key("watch", routes=("models", "metrics")), key("no", routes=()))
    others = {"other": FakeEngine("other")}
    async with serving(tenants=Tenants(keys=KeyRing(keys)), others=others) as service:
        for secret, model in (("all", "fake"), ("all", "other"), ("one", "fake"), ("one", "nowhere"), ("all", "?")):
            body = {"model": model, "messages": MESSAGES}
            await service.post("/v1/chat/completions", body, headers=bearer(secret))
        seen = {}
        for secret in ("all", "one", "watch"):
            reply = await service.get("/status.json", headers=bearer(secret))
            status = reply.json
            seen[secret] = (sorted(status["models"]), status["recent"]["num_requests"], len(status["errors"]))
            assert not any(one.id in reply.text for one in keys), "no key is named"
        # A name that is not served belongs to no model: whoever asked for it sees it, and whoever watches.
        assert seen == {
            "all": (["fake", "other"], 4, 1),
            "one": (["fake"], 3, 1),
            "watch": (["fake", "other"], 3, 2),
        }
        refused = await service.get("/status.json", headers=bearer("no"))
        assert (refused.status, refused.error["code"]) == (403, "permission_denied")
