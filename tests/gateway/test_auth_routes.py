"""Every route that the application has, in every spelling that a server or proxy might take for it: 401 without a key.

Sent byte by byte, since client libraries tidy paths up.
"""

from __future__ import annotations

import asyncio
import re
from typing import get_args

from llm_inference.gateway.auth import OPEN_PATHS, KeyRing
from llm_inference.gateway.routes import all_routes
from llm_inference.gateway.tenants.key import ApiKey, RouteGroup, Scope, digest_of
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.gateway.ui.page import Page
from tests.gateway.serving import Service, serving

KEY = "sk-correct-horse"
GROUPS: frozenset[RouteGroup] = frozenset(get_args(RouteGroup))
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH")
#: Authorization headers that are none.
CREDENTIALS = (
    "",
    "Authorization: Bearer",
    "Authorization: Bearer ",
    "Authorization: Bearer wrong",
    f"Authorization: Basic {KEY}",
    f"Authorization: Token {KEY}",
    f"Authorization: {KEY}",
    f"Authorization: Bearer {KEY}x",
    f"Authorization: Bearer {KEY.upper()}",
    f"Proxy-Authorization: Bearer {KEY}",
    f"Cookie: authorization={KEY}",
    "X-Api-Key: ",
    "X-Forwarded-For: 127.0.0.1",
)


def spellings(path: str) -> list[str]:
    encoded = "/" + "".join(f"%{ord(char):02x}" for char in path[1:])
    return [
        path,
        path + "/",
        "/" + path,
        path.upper(),
        encoded,
        path.replace("/", "%2f"),
        "/." + path,
        "/health/.." + path,
        "/health/%2e%2e" + path,
        "/health;" + path,
        path + ";/health",
        path + "?/health",
        path + "#/health",
        path + "%00",
        path + "/../../health",
        f"http://127.0.0.1{path}",
        f"HTTPS://127.0.0.1{path}",
    ]


async def statuses(service: Service, requests: list[tuple[str, str, str]]) -> list[int]:
    """One connection, requests one after the other; (method, target, header line)."""
    found = []
    for method, target, header in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        line = f"{header}\r\n" if header else ""
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{line}\r\n".encode())
        found.append(int((await reader.readline()).split()[1]))
        writer.close()
        await writer.wait_closed()
    return found


async def test_every_route_needs_a_key_however_it_is_spelt() -> None:
    async with serving(api_keys=(KEY,)) as service:
        open_paths = OPEN_PATHS | set(Page("/v1").handlers)
        paths = {re.sub(r"{.*?}", "fake", route.path) for route in service.app.routes}  # type: ignore[attr-defined]
        assert {"/v1/chat/completions", "/v1/models/fake", "/openapi.json"} <= paths
        closed = sorted(paths - open_paths)
        requests = [("POST", target, "") for path in closed for target in spellings(path)]
        requests += [("GET", path, header) for path in closed for header in CREDENTIALS]
        requests += [(method, path, "") for path in closed for method in METHODS]
        requests += [
            (method, path, "") for path in sorted(open_paths) for method in METHODS if method not in ("GET", "HEAD")
        ]
        wrong = {
            request: status
            for request, status in zip(requests, await statuses(service, requests), strict=True)
            if status not in (401, 400)  # 400: no HTTP at all, by the parser
        }
        assert wrong == {}
        assert service.engine.requests == []
        # The same with the key is something else: the loop above did not test the wrong thing.
        with_key = [("POST", path, f"authorization: bEaReR {KEY}") for path in closed]
        assert 401 not in await statuses(service, with_key)


async def test_every_admin_route_needs_a_key_that_names_admin() -> None:
    keys = [
        ApiKey(id="all", name="all", digest=digest_of("all"), scope=Scope(routes=tuple(GROUPS - {"admin"}))),
        ApiKey(id="op", name="op", digest=digest_of("op"), scope=Scope(routes=("admin",))),
    ]
    admin = [route for route in all_routes("/v1") if "/admin/" in route.path]
    assert len(admin) >= 8
    assert {route.group for route in admin} == {"admin"}
    async with serving(tenants=Tenants(keys=KeyRing(keys))) as service:
        for secret, refused in (("all", True), ("op", False)):
            requests = [(route.method, route.path, f"Authorization: Bearer {secret}") for route in admin]
            for request, status in zip(requests, await statuses(service, requests), strict=True):
                assert (status == 403) == refused, request
    async with serving() as service:  # without keys nobody is an operator
        assert set(await statuses(service, [(route.method, route.path, "") for route in admin])) == {403}
