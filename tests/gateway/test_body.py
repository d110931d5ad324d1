from __future__ import annotations

import asyncio
import io
import json
import threading
import time

import pytest

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.body import THREAD_BYTES, decoded
from tests.gateway.serving import MESSAGES, Service, serving

LIMIT = 10_000
JSON = {"content-type": "application/json"}


def body_of(size: int) -> bytes:
    empty = json.dumps({"prompt": "", "max_tokens": 1}).encode()
    return json.dumps({"prompt": "x" * (size - len(empty)), "max_tokens": 1}).encode()


async def test_limit_counts_declared_and_chunked_bytes() -> None:
    async def chunked(body: bytes):  # type: ignore[no-untyped-def]
        for start in range(0, len(body), 1000):
            yield body[start : start + 1000]

    async with serving(engine=FakeEngine("fake", max_model_len=20_000), max_body_bytes=LIMIT) as service:
        for size, status in ((LIMIT, 200), (LIMIT + 1, 413), (50 * LIMIT, 413)):
            assert len(body_of(size)) == size
            for data in (body_of(size), chunked(body_of(size))):
                reply = await service.request("POST", "/v1/completions", data=data, headers=JSON)
                assert reply.status == status
                if status == 413:
                    assert reply.error["code"] == "payload_too_large"
                    assert str(LIMIT) in reply.error["message"]


async def test_endless_chunks_are_cut_off() -> None:
    """A client that never stops sending gets its answer, then the connection ends."""
    async with serving(max_body_bytes=LIMIT) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        started = time.perf_counter()

        async def send() -> None:
            while True:
                writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0.001)

        sender = asyncio.create_task(send())
        assert b" 413 " in await reader.readline()
        assert time.perf_counter() - started < 10
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        writer.close()


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"text"', b"null", b'{"a": NaN}', b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"[" * 100_000],
)
async def test_what_is_no_json_object(raw: bytes) -> None:
    async with serving() as service:
        reply = await service.request("POST", "/v1/chat/completions", data=raw, headers=JSON)
        assert reply.status == 400
        assert reply.error["code"] == "invalid_json"


async def test_content_type() -> None:
    async with serving() as service:
        raw = json.dumps({"messages": MESSAGES}).encode()
        for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON", "application/x+json"):
            reply = await service.request("POST", "/v1/chat/completions", data=raw, headers={"content-type": kind})
            assert reply.status == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            reply = await service.request("POST", "/v1/chat/completions", data=raw, headers={"content-type": kind})
            assert reply.status == 400
            assert reply.error["code"] == "unsupported_media_type"
            assert "application/json" in reply.error["message"]


async def test_large_bodies_are_parsed_in_a_thread() -> None:
    seen = []

    def parse(body: dict[str, object]) -> int:
        seen.append(threading.current_thread() is threading.main_thread())
        return len(body)

    assert await decoded(b'{"a": 1}', parse) == 1
    assert await decoded(b'{"a": "' + b"x" * THREAD_BYTES + b'"}', parse) == 1
    assert seen == [True, False]
    with pytest.raises(InvalidRequestError):
        await decoded(b"x" * (THREAD_BYTES + 1), parse)


async def test_huge_prompts_stall_neither_health_nor_a_stream() -> None:
    """D5: 25 MB of text, and of token ids."""
    text = json.dumps({"prompt": "x" * 25_000_000}).encode()
    ids = json.dumps({"prompt": [7] * 8_000_000}).encode()
    # Both end as an error of length, the second before the engine is asked at all.
    async with serving(FakeScript(answers=["abc" * 1000], delay_s=0.01)) as service:
        stalls: list[float] = []
        # A machine that is busy otherwise may stall us as well, but not every time.
        while len(stalls) < 3 and min(stalls, default=1.0) >= 1.0:
            stalls.append(await _longest_stall(service, text, ids))
        assert min(stalls) < 1.0


async def _longest_stall(service: Service, *bodies: bytes) -> float:
    """Seconds that a probe or a stream has to wait at most while `bodies` are refused."""
    gaps: list[float] = []
    done = asyncio.Event()

    async def beat() -> None:
        while not done.is_set():
            before = time.perf_counter()
            assert (await service.get("/health")).status == 200
            gaps.append(time.perf_counter() - before)
            await asyncio.sleep(0.01)

    async def stream() -> None:
        last = time.perf_counter()
        async with service.session.post(
            service.url + "/v1/chat/completions", json={"messages": MESSAGES, "stream": True}
        ) as response:
            async for _ in response.content:
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                if done.is_set():
                    response.close()
                    break

    beating, streaming = asyncio.create_task(beat()), asyncio.create_task(stream())
    for raw in bodies:
        reply = await service.request("POST", "/v1/completions", data=io.BytesIO(raw), headers=JSON)
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
    done.set()
    await asyncio.gather(beating, streaming)
    assert len(gaps) > 3
    return max(gaps)
