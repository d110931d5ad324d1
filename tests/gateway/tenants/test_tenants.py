"""Limits and ledger, through a real server: what clients are told, and that every end gives back what it held."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.types import Delta, GenerateRequest
from llm_inference.errors import ContextLengthError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.ledger import Ledger
from llm_inference.gateway.tenants.ledger_store import LedgerStore
from llm_inference.gateway.tenants.limit_store import MemoryLimits
from llm_inference.gateway.tenants.limits import NO_LIMITS, Limits
from llm_inference.gateway.tenants.prices import Price
from llm_inference.gateway.tenants.tenants import Tenants
from tests.gateway.serving import MESSAGES, Reply, Service, official, serving, until

HEADERS = {"authorization": "Bearer a"}


def limited(limits: Limits, scope: Scope | None = None, **fields: Any) -> Tenants:
    key = ApiKey("k_a", "a", digest_of("a"), limits=limits, scope=scope or Scope())
    return Tenants(keys=KeyRing([key, replace(key, id="k_b", digest=digest_of("b"))]), limits=MemoryLimits(), **fields)


async def chat(service: Service, key: str = "a", **fields: Any) -> Reply:
    body = {"model": "fake", "messages": MESSAGES, "max_tokens": 5, **fields}
    return await service.post("/v1/chat/completions", body, headers={"authorization": f"Bearer {key}"})


async def test_requests_per_minute() -> None:
    async with serving(tenants=limited(Limits(requests_per_minute=3))) as service:
        for left in (2, 1, 0):
            reply = await chat(service)
            assert reply.status == 200
            assert reply.headers["x-ratelimit-limit-requests"] == "3"
            assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
            assert reply.headers["x-ratelimit-reset-requests"].endswith("s")
        for attempt in range(3):  # the first from the counters, the others before their bodies are read
            reply = await chat(service, **({"broken": 1} if attempt else {}))
            assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
            assert "this API key" in reply.error["message"]
            assert "requests_per_minute: 3 requests" in reply.error["message"]
            assert 1 <= int(reply.headers["retry-after"]) <= 20
            assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await chat(service, "b")).status == 200, "another key has limits of its own"
        assert len(service.engine.requests) == 4
        assert 'llm_inference_refusals_total{reason="requests_per_minute"} 3.0' in await service.metrics()


async def test_openais_client_understands_the_refusal() -> None:
    import openai

    async with serving(tenants=limited(Limits(requests_per_minute=1))) as service:
        client = official(service).with_options(api_key="a")
        call = client.chat.completions.with_raw_response
        reply = await call.create(model="fake", messages=MESSAGES)  # type: ignore[arg-type]
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError) as refusal:
            await call.create(model="fake", messages=MESSAGES)  # type: ignore[arg-type]
        assert refusal.value.code == "rate_limit_exceeded"
        await client.close()


async def test_tokens_are_reserved_and_settled() -> None:
    """The fake's tokens are bytes: an answer to `hello` has 5, however many were reserved."""
    async with serving(tenants=limited(Limits(tokens_per_minute=1000))) as service:
        first = await chat(service, max_tokens=900)
        assert first.status == 200
        assert int(first.headers["x-ratelimit-remaining-tokens"]) < 100, "reserved"
        used = first.json["usage"]["total_tokens"]
        second = await chat(service, max_tokens=900)
        assert second.status == 200, "settled with what was used"
        reserved = 1000 - int(first.headers["x-ratelimit-remaining-tokens"])
        assert int(second.headers["x-ratelimit-remaining-tokens"]) == pytest.approx(1000 - used - reserved, abs=3)
        large = await chat(service, max_tokens=1001)
        assert (large.status, large.error["code"]) == (429, "rate_limit_exceeded")
        assert "more than the whole limit" in large.error["message"]
        assert "retry-after" not in large.headers
        assert (await chat(service, max_tokens=None)).status == 200, "a guess is never larger than the limit"


class Silent(FakeEngine):
    """Tells neither usage nor token ids, as some foreign servers do."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        async for delta in super().generate(request):
            yield msgspec.structs.replace(delta, usage=None, token_ids=())


async def test_what_was_reserved_is_kept_where_the_engine_tells_no_counts() -> None:
    tenants = limited(Limits(tokens_per_minute=1000))
    async with serving(engine=Silent("fake"), tenants=tenants) as service:
        assert (await chat(service, max_tokens=600)).status == 200
        assert (await chat(service, max_tokens=600)).status == 429
        assert (await chat(service, "b", temperature=-1)).status == 400
        assert (await chat(service, "b", max_tokens=600)).status == 200, "what was refused has used nothing"


async def test_concurrency_is_held_to_the_last_byte() -> None:
    script = FakeScript(hang_after=2)
    async with serving(script, tenants=limited(Limits(max_concurrent_requests=1))) as service:
        body = {"model": "fake", "messages": MESSAGES, "stream": True}
        async with service.session.post(f"{service.url}/v1/chat/completions", json=body, headers=HEADERS) as reply:
            assert reply.status == 200
            refused = await chat(service)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert "max_concurrent_requests: 1 requests" in refused.error["message"]
            assert (await asyncio.wait_for(chat(service, "b", max_tokens=2), 2)).status == 200


@pytest.mark.parametrize("end", ["finished", "refused", "failed", "failed later", "left", "left unstreamed", "timeout"])
async def test_every_end_gives_the_seat_back(end: str) -> None:
    scripts = {
        "refused": FakeScript(fail_after=0, error=ContextLengthError("too long")),
        "failed": FakeScript(fail_after=0),
        "failed later": FakeScript(fail_after=2),
        "left": FakeScript(hang_after=2),
        "left unstreamed": FakeScript(hang_after=2),
        "timeout": FakeScript(hang_after=2),
    }
    tenants = limited(Limits(max_concurrent_requests=1, tokens_per_minute=5000))
    timeout = 0.2 if end == "timeout" else None
    async with serving(scripts.get(end), tenants=tenants, request_timeout_s=timeout) as service:
        body = {"model": "fake", "messages": MESSAGES, "stream": end in ("left", "failed later")}
        for _ in range(3):  # each needs the only seat
            if end.startswith("left"):
                with pytest.raises((asyncio.TimeoutError, aiohttp.ServerTimeoutError)):
                    await asyncio.wait_for(service.post("/v1/chat/completions", body, headers=HEADERS), 0.2)
                await service.idle()
            else:
                reply = await service.post("/v1/chat/completions", body, headers=HEADERS)
                assert reply.status != 429, reply.text
        await service.idle()
        counters = tenants.limits._counters  # type: ignore[union-attr]
        assert not counters["key:k_a:max_concurrent_requests"].leases


async def test_caps_of_prompt_and_output() -> None:
    limits = Limits(max_prompt_tokens=40, max_output_tokens=7)
    async with serving(FakeScript(answers=["x" * 50]), tenants=limited(limits)) as service:
        open_ended = await chat(service, max_tokens=None)
        choice = open_ended.json["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("x" * 7, "length")
        asked = await chat(service, max_tokens=8)
        assert (asked.status, asked.error["param"]) == (400, "max_tokens")
        assert "7 tokens at most (max_output_tokens)" in asked.error["message"]
        long = await chat(service, messages=[{"role": "user", "content": "y" * 41}])
        assert (long.status, long.error["param"]) == (400, "messages")
        assert "max_prompt_tokens" in long.error["message"]
        for number, status in ((40, 200), (41, 400)):
            reply = await service.post(
                "/v1/completions", {"prompt": list(range(number)), "max_tokens": 1}, headers=HEADERS
            )
            assert reply.status == status
        assert len(service.engine.requests) == 2


async def test_priorities_are_brought_into_the_keys_range() -> None:
    tenants = limited(Limits(), Scope(priority=(2, 5)))
    async with serving(tenants=tenants) as service:
        for priority in (None, -7, 3, 99):
            assert (await chat(service, priority=priority)).status == 200
        assert [request.priority for request in service.engine.requests] == [2, 2, 3, 5]


async def test_addresses_are_limited_where_nobody_shows_a_key() -> None:
    from llm_inference.gateway.tenants.caller import TrustedProxies

    tenants = Tenants(
        limits=MemoryLimits(), address_limits=Limits(requests_per_minute=1), proxies=TrustedProxies(["127.0.0.1"])
    )
    async with serving(tenants=tenants) as service:

        async def status(address: str) -> int:
            reply = await service.post(
                "/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"x-forwarded-for": address}
            )
            return reply.status

        assert [await status("192.0.2.1"), await status("192.0.2.1"), await status("192.0.2.2")] == [200, 429, 200]
        assert [await status("192.0.2.9, 192.0.2.1"), await status("192.0.2.3")] == [429, 200]


async def test_a_models_limit_is_all_callers() -> None:
    tenants = limited(Limits(), model_limits={"fake": Limits(requests_per_minute=2)})
    async with serving(others={"other": FakeEngine("other")}, tenants=tenants) as service:
        assert [(await chat(service, key)).status for key in "aba"] == [200, 200, 429]
        assert "the model 'fake'" in (await chat(service, "b")).error["message"]
        assert (await chat(service, model="other")).status == 200


async def test_budgets_in_tokens_and_price() -> None:
    tenants = limited(Limits(price_per_day=0.001), prices={"fake": Price(input=0, output=100)})
    async with serving(tenants=tenants) as service:  # 0.001 is ten tokens of output
        assert (await chat(service, max_tokens=5)).status == 200
        assert (await chat(service, max_tokens=5)).status == 200
        reply = await chat(service, max_tokens=5)
        assert (reply.status, reply.error["code"]) == (429, "insufficient_quota")
        assert "price_per_day: 0.001 in price" in reply.error["message"]
        assert int(reply.headers["retry-after"]) <= 86_400


async def test_embeddings_and_tokenizer_count_too() -> None:
    async with serving(tenants=limited(Limits(requests_per_minute=3, tokens_per_minute=600))) as service:
        reply = await service.post("/v1/embeddings", {"model": "fake", "input": ["hello"]}, headers=HEADERS)
        assert reply.headers["x-ratelimit-remaining-requests"] == "2"
        for path in ("/tokenize", "/v1/tokenize"):
            assert (await service.post(path, {"prompt": "hello"}, headers=HEADERS)).status == 200
        assert (await service.post("/detokenize", {"tokens": [104]}, headers=HEADERS)).status == 429


async def test_nothing_is_counted_where_nothing_is_limited() -> None:
    tenants = limited(Limits())
    async with serving(tenants=tenants) as service:
        reply = await chat(service)
        assert reply.status == 200
        assert not [name for name in reply.headers if name.startswith("x-ratelimit")]
        assert len(tenants.limits) == 0  # type: ignore[arg-type]


async def test_refusals_wait_for_nothing() -> None:
    async with serving(tenants=limited(Limits(requests_per_minute=1))) as service:
        await chat(service)
        begun = time.perf_counter()
        replies = await asyncio.gather(*(chat(service) for _ in range(50)))
        assert {reply.status for reply in replies} == {429}
        assert time.perf_counter() - begun < 20, "none waits; how quick they are is measured in benchmarks/gateway"


@asynccontextmanager
async def with_ledger(
    tmp_path: Path, script: FakeScript | None = None, limits: Limits = NO_LIMITS
) -> AsyncIterator[tuple[Service, LedgerStore]]:
    store = LedgerStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    store.prepare()
    ledger = Ledger(store, interval_s=0.02)
    ledger.start()
    async with serving(script, tenants=limited(limits, ledger=ledger)) as service:
        yield service, store
        ledger.close()
    store.close()


def rows(store: LedgerStore) -> list[dict[str, Any]]:
    with store._database.transaction() as connection:
        return [dict(row) for row in connection.exec_driver_sql("SELECT * FROM ledger ORDER BY time").mappings()]


async def test_a_row_says_what_the_client_saw(tmp_path: Path) -> None:
    async with with_ledger(tmp_path) as (service, store):
        reply = await chat(service)
        await service.get("/v1/models", headers=HEADERS)
        await service.get("/health")
        await until(lambda: rows(store))
        (row,) = rows(store)
        usage = reply.json["usage"]
        assert (row["prompt_tokens"], row["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
        assert (row["request_id"], row["key_id"]) == (reply.headers["x-request-id"], "k_a")
        assert (row["model"], row["route"], row["status"]) == ("fake", "/v1/chat/completions", 200)
        assert (row["finish_reason"], row["requests"]) == ("stop", 1)
        assert 0 < row["ttft_s"] <= row["duration_s"]
        assert abs(row["time"] - time.time()) < 60


async def test_the_ledger_balances_after_aborts(tmp_path: Path) -> None:
    """Clients that leave in the middle have seen every token that is written down, and no other."""
    seen = 0
    async with with_ledger(tmp_path, FakeScript(answers=["x" * 40], hang_after=6)) as (service, store):
        for _ in range(5):
            body = {"model": "fake", "prompt": "hello", "stream": True}
            async with service.session.post(f"{service.url}/v1/completions", json=body, headers=HEADERS) as reply:
                tokens = 0
                async for line in reply.content:
                    tokens += b'"text":"x"' in line.replace(b" ", b"")
                    if tokens == 6:
                        break
                seen += tokens
                reply.close()
        await service.idle()
        await until(lambda: len(rows(store)) == 5)
        found = rows(store)
        assert sum(row["completion_tokens"] for row in found) == seen == 30
        prompt = len((await service.engine.tokenize("hello")).token_ids)
        assert {row["prompt_tokens"] for row in found} == {prompt}
        assert {row["finish_reason"] for row in found} == {"abort"}


async def test_failures_and_refusals_have_rows(tmp_path: Path) -> None:
    async with with_ledger(tmp_path, FakeScript(fail_after=2), limits=Limits(requests_per_minute=2)) as (
        service,
        store,
    ):
        assert (await chat(service)).status == 500
        assert (await chat(service, stream=True)).status == 200
        assert (await chat(service)).status == 429
        assert (await chat(service)).status == 429
        await until(lambda: len(rows(store)) == 4)
        assert [row["status"] for row in rows(store)] == [500, 200, 429, 429]
        assert [row["completion_tokens"] for row in rows(store)] == [2, 2, 0, 0]


async def test_totals_under_load(tmp_path: Path) -> None:
    async with with_ledger(tmp_path) as (service, store):
        replies = await asyncio.gather(*(chat(service, "ab"[number % 2]) for number in range(200)))
        total = sum(reply.json["usage"]["total_tokens"] for reply in replies)
        await until(lambda: len(rows(store)) == 200)
        usage = store.usage(["key"])
        assert [row["requests"] for row in usage] == [100, 100]
        assert sum(row["prompt_tokens"] + row["completion_tokens"] for row in usage) == total


async def test_a_ledger_that_is_away_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with with_ledger(tmp_path) as (service, store):
        original = store.write

        def away(entries: Any) -> None:
            from llm_inference.errors import NotReadyError

            raise NotReadyError("gone")

        store.write = away  # type: ignore[method-assign]
        assert {(await chat(service)).status for _ in range(5)} == {200}
        await until(lambda: "cannot be written" in caplog.text)
        store.write = original  # type: ignore[method-assign]
        await until(lambda: len(rows(store)) == 5, 5)


async def test_the_request_line_names_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "llm_inference.gateway.request")
    async with serving(tenants=limited(Limits())) as service:
        await chat(service)
    lines = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [line["key_id"] for line in lines] == ["k_a"]
