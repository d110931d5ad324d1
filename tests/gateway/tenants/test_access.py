from __future__ import annotations

import pytest
from yarl import URL

from llm_inference.engine.fake import FakeEngine
from llm_inference.gateway.auth import OPEN_PATHS, KeyRing
from llm_inference.gateway.routes import all_routes
from llm_inference.gateway.tenants.key import ApiKey, RouteGroup, Scope, digest_of
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.gateway.ui.page import Page
from tests.gateway.serving import MESSAGES, Reply, Service, serving

ALL: tuple[RouteGroup, ...] = ("inference", "tokenize", "models", "metrics", "admin")


def key(secret: str, **scope: object) -> ApiKey:
    return ApiKey(f"k_{secret}", secret, digest_of(secret), scope=Scope(**scope))  # type: ignore[arg-type]


def tenants(*keys: ApiKey) -> Tenants:
    return Tenants(keys=KeyRing(keys))


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def ask(service: Service, method: str, path: str, **headers: str) -> tuple[int, str | None]:
    body = {"model": "fake", "messages": MESSAGES} if method == "POST" else None
    url = URL(service.url + path, encoded=True)  # as it is: the client would resolve `..` itself
    async with service.session.request(method, url, json=body, headers=headers) as response:
        reply = Reply(response.status, response.headers, await response.text())
    return reply.status, reply.error["code"] if reply.status >= 400 and method != "HEAD" else None


def spellings(path: str) -> list[str]:
    first, _, rest = path[1:].partition("/")
    escaped = "/" + "".join(f"%{ord(char):02x}" for char in first) + (f"/{rest}" if rest else "")
    return [
        path,
        path + "/",
        "/" + path,
        path.upper(),
        escaped,
        path + "?key=x",
        path + "%00",
        path + "/..",
        path + ";a",
    ]


async def test_no_route_answers_without_a_key_however_it_is_spelt() -> None:
    """The routes are those of the app itself: a new one is closed before anybody thinks of it."""
    async with serving(tenants=tenants(key("a"))) as service:
        paths = {route.path for route in service.app.routes} | {"/openapi.json", "/docs", "/nowhere"}  # type: ignore[attr-defined]
        assert {route.path for route in all_routes("/v1")} <= paths
        closed = {path.replace("{model_id:path}", "fake") for path in paths} - OPEN_PATHS - set(Page("").handlers)
        assert len(closed) > 8
        for path in closed:
            for spelling in spellings(path):
                for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"):
                    status, code = await ask(service, method, spelling)
                    assert (status, code) == (401, None if method == "HEAD" else "invalid_api_key"), (method, spelling)
                status, _ = await ask(service, "POST", spelling, authorization="Basic YTph")
                assert status == 401
        assert service.engine.requests == []
        assert 'llm_inference_refusals_total{reason="invalid_api_key"}' in await service.metrics()


async def test_metrics_are_open_unless_said_otherwise() -> None:
    keys = (key("plain"), key("scraper", routes=("metrics",)))
    async with serving(tenants=tenants(*keys)) as service:
        assert (await service.get("/metrics")).status == 200
    async with serving(tenants=tenants(*keys), open_metrics=False) as service:
        assert (await service.get("/metrics")).status == 401
        assert (await service.get("/metrics", headers=bearer("plain"))).status == 403
        assert (await service.get("/metrics", headers=bearer("scraper"))).status == 200
        assert (await service.get("/health")).status == 200


async def test_a_key_uses_the_routes_of_its_scope() -> None:
    keys = (key("chat", routes=("inference",)), key("words", routes=("tokenize",)), key("none", routes=()))
    async with serving(tenants=tenants(*keys)) as service:
        for secret, allowed in (("chat", "inference"), ("words", "tokenize"), ("none", "")):
            for route in all_routes("/v1"):
                if route.path in OPEN_PATHS:
                    continue
                path = route.path.replace("{model_id:path}", "fake")
                status, code = await ask(service, route.method, path, **bearer(secret))
                assert (status == 403) == (route.group != allowed), (secret, path)
                assert code == "permission_denied" or route.group == allowed


@pytest.mark.parametrize("with_keys", [True, False])
async def test_admin_routes_need_the_admins_scope(with_keys: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any key, too: nobody is an operator just because nobody is known."""
    from llm_inference.gateway import app as module
    from llm_inference.gateway.health import version
    from llm_inference.gateway.routes import Route

    def with_admin(prefix: str) -> list[Route]:
        return [*all_routes(prefix), Route("POST", "/admin/reload", version, "Reload", tag="admin")]

    monkeypatch.setattr(module, "all_routes", with_admin)
    keys = tenants(key("user"), key("operator", routes=ALL)) if with_keys else None
    async with serving(tenants=keys) as service:
        status, code = await ask(service, "POST", "/admin/reload", **bearer("user"))
        assert (status, code) == (403, "permission_denied")
        status, _ = await ask(service, "POST", "/admin/reload", **bearer("operator"))
        assert status == (200 if with_keys else 403)
        if with_keys:
            assert (await ask(service, "POST", "/admin/reload"))[0] == 401
    async with serving(api_keys=("plain",)) as service:
        assert (await ask(service, "POST", "/admin/reload", **bearer("plain")))[0] == 403


async def test_a_key_uses_and_sees_its_models_alone() -> None:
    others = {name: FakeEngine(name) for name in ("alpha-1", "alpha-2", "secret")}
    keys = (key("all"), key("alpha", models=("alpha-*",)), key("one", models=("alpha-2",)), key("no", models=("x",)))
    async with serving(others=others, tenants=tenants(*keys), aliases={"hidden": "secret", "a": "alpha-2"}) as service:

        async def listed(secret: str) -> list[str]:
            reply = await service.get("/v1/models", headers=bearer(secret))
            return [card["id"] for card in reply.json["data"]]

        async def used(secret: str, **fields: object) -> tuple[int, str | None]:
            reply = await service.post("/v1/chat/completions", {"messages": MESSAGES, **fields}, headers=bearer(secret))
            assert "secret" not in reply.text or secret == "all" or fields.get("model") in ("secret", "hidden")
            return reply.status, reply.error["code"] if reply.status >= 400 else None

        assert await listed("all") == ["fake", "alpha-1", "alpha-2", "secret"]
        assert await listed("alpha") == ["alpha-1", "alpha-2"]
        assert await listed("no") == []
        assert await used("alpha", model="alpha-1") == (200, None)
        assert await used("alpha", model="a") == (200, None)
        for name in ("secret", "hidden", "fake", "nothing-of-that-name"):
            assert await used("alpha", model=name) == (404, "model_not_found")
            reply = await service.get(f"/v1/models/{name}", headers=bearer("alpha"))
            assert reply.status == 404
        assert (await service.get("/v1/models/alpha-1", headers=bearer("alpha"))).status == 200
        assert await used("one") == (200, None), "the only one that it may use"
        assert await used("alpha") == (400, None)
        assert await used("no") == (400, None)
        assert others["secret"].requests == []


async def test_what_is_hidden_cannot_be_told_from_what_is_not_there() -> None:
    async with serving(others={"secret": FakeEngine("secret")}, tenants=tenants(key("a", models=("fake",)))) as service:
        texts = []
        for name in ("secret", "absent"):
            reply = await service.post(
                "/v1/chat/completions", {"model": name, "messages": MESSAGES}, headers=bearer("a")
            )
            texts.append(reply.text.replace(name, "X"))
        assert texts[0] == texts[1]


async def test_expired_keys_are_no_keys() -> None:
    from dataclasses import replace

    async with serving(tenants=tenants(replace(key("old"), expires=1.0), key("new"))) as service:
        assert (await ask(service, "GET", "/v1/models", **bearer("old")))[0] == 401
        assert (await ask(service, "GET", "/v1/models", **bearer("new")))[0] == 200


async def test_a_key_that_nobody_can_check_is_a_503() -> None:
    from llm_inference.errors import NotReadyError
    from llm_inference.gateway.tenants.directory import KeyDirectory
    from llm_inference.gateway.tenants.key import new_secret

    class Away:
        def find(self, digests: object) -> dict[bytes, ApiKey]:
            raise NotReadyError("away")

    async with serving(tenants=Tenants(keys=KeyDirectory(KeyRing([key("known")]), Away()))) as service:
        assert await ask(service, "GET", "/v1/models", **bearer(new_secret())) == (503, "key_store_unavailable")
        assert await ask(service, "GET", "/v1/models", **bearer("known")) == (200, None)
        assert await ask(service, "GET", "/v1/models", **bearer("no key of ours")) == (401, "invalid_api_key")
