"""All bodies together are bounded; what was taken is given back, however the request ends."""

from __future__ import annotations

import asyncio
import json

from tests.gateway.serving import Service, serving

SIZE = 4000


async def begin(service: Service, size: int = SIZE) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A request whose body has arrived but for its last byte, which is returned."""
    body = json.dumps({"model": "fake", "prompt": "x" * size, "max_tokens": 1}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body[:-1])
    await writer.drain()
    await asyncio.sleep(0.05)
    return reader, writer, body[-1:]


async def test_bodies_over_the_budget_are_refused_and_come_back_later() -> None:
    async with serving(max_body_bytes=SIZE + 100) as service:
        held = [await begin(service) for _ in range(4)]
        refused = await service.complete(prompt="y" * SIZE, max_tokens=1)
        assert (refused.status, refused.error["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert (await service.get("/health")).status == 200
        for reader, writer, last in held[:2]:
            writer.write(last)
            assert b"200 OK" in await reader.read()
            writer.close()
        for _, writer, _ in held[2:]:
            writer.close()  # clients that left give theirs back, too
        await asyncio.sleep(0.05)
        for _ in range(3):
            again = [await begin(service) for _ in range(4)]
            for reader, writer, last in again:
                writer.write(last)
                assert b"200 OK" in await reader.read()
                writer.close()
