from __future__ import annotations

import hmac

import pytest

from llm_inference.gateway.auth import AuthMiddleware, KeyRing
from tests.gateway.serving import MESSAGES, serving

KEY = "sk-correct-horse"

#: Every spelling must be refused: those of real routes, and those that only look like an open one.
PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/batch_completions",
    "/v1/models",
    "/v1/models/fake",
    "/v1/tokenize",
    "/tokenize",
    "/detokenize",
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/v1/chat/completions/",
    "/V1/Chat/Completions",
    "/v1/chat%2fcompletions",
    "/%76%31/chat/completions",
    "/v1/./chat/completions",
    "/health/../v1/chat/completions",
    "/health/",
    "//health",
    "/health;/v1/chat/completions",
    "/health%00",
    "/Health",
    "/metrics/",
    "/docs",
    "/openapi.json",
    "/ui",
    "/ui/",
    "/ui/nothing.js",
    "/status.json",
    "/usage.json",
    "/nowhere",
]


async def test_without_a_key_everything_but_the_probes_is_closed() -> None:
    """O6."""
    async with serving(api_keys=(KEY, "second")) as service:
        body = {"messages": MESSAGES}
        for path in PATHS:
            for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
                reply = await service.request(method, path, json=body if method == "POST" else None)
                assert reply.status == 401, (method, path)
                if method != "HEAD":
                    assert reply.error["code"] == "invalid_api_key"
        assert service.engine.requests == []
        for path in ("/health", "/ready", "/version", "/metrics"):
            assert (await service.get(path)).status == 200
            assert (await service.request("POST", path)).status == 401


async def test_raw_paths_that_clients_would_tidy_up() -> None:
    """Sent byte by byte: a client library would normalise them."""
    import asyncio

    async with serving(api_keys=(KEY,)) as service:
        for target in (
            "/health/../v1/models",
            "/health?x=/v1/models#",
            f"http://127.0.0.1:{service.port}/v1/models",
            "/v1/models?/health",
            "//health",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            status = int((await reader.readline()).split()[1])
            writer.close()
            await writer.wait_closed()
            assert status == (200 if target.startswith("/health?") else 401), target


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"authorization": f"BEARER   {KEY}"}, 200),
        ({"authorization": "Bearer second"}, 200),
        ({"x-api-key": KEY}, 200),
        ({"authorization": KEY}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"authorization": f"Bearer {KEY} {KEY}"}, 401),
        ({"authorization": f"Bearer {KEY.upper()}"}, 401),
        ({"x-api-key": ""}, 401),
        ({"cookie": f"key={KEY}"}, 401),
    ],
)
async def test_ways_to_send_a_key(headers: dict[str, str], status: int) -> None:
    async with serving(api_keys=(KEY, "second")) as service:
        reply = await service.get("/v1/models", headers=headers)
        assert reply.status == status
        assert (reply.headers.get("www-authenticate") == "Bearer") == (status == 401)


async def test_without_keys_nothing_is_closed() -> None:
    async with serving() as service:
        assert (await service.get("/v1/models")).status == 200


async def test_websockets_are_closed_too() -> None:
    sent = []

    async def send(message: object) -> None:
        sent.append(message)

    async def inside(scope: object, receive: object, send: object) -> None:
        raise AssertionError("must not be reached")

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/health", "headers": []}
    await AuthMiddleware(inside, KeyRing([KEY]))(scope, receive, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "invalid_api_key"}]


def test_comparison_goes_through_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    genuine = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return genuine(left, right)

    monkeypatch.setattr("llm_inference.gateway.auth.hmac.compare_digest", compare)
    ring = KeyRing(["a", "b", "c"])
    assert ring.valid("a") is not None
    assert len(compared) == 3
    assert all(len(left) == len(right) == 32 for left, right in compared)
    assert ring.valid("ü") is None
    assert not KeyRing([])
