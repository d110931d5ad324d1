"""The queue through the real application: what clients see of it."""

from __future__ import annotations

import asyncio

import pytest

from llm_inference.engine.fake import FakeScript
from llm_inference.gateway.admission.rules import AdmissionRules, DegradeRule
from llm_inference.gateway.admission.turn import caller_of, tier_of
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.record import RequestRecord
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.limit_store import MemoryLimits
from llm_inference.gateway.tenants.limits import Limits
from llm_inference.gateway.tenants.tenants import Tenants
from tests.gateway.routing.test_http import Fleet, entry
from tests.gateway.serving import MESSAGES, Reply, Service, serving, until

SLOW = FakeScript(answers=["abcdefgh"], delay_s=0.05)


async def waiting(service: Service, num: int) -> None:
    await until(lambda: service.app.state.gateway.admission.num_waiting == num)


async def running(service: Service, num: int = 1) -> None:
    await until(lambda: service.app.state.gateway.admission.in_flight == num)


def ask(service: Service, **fields: object) -> asyncio.Task[Reply]:
    return asyncio.create_task(service.chat(**fields))


async def test_by_default_a_full_server_refuses_as_ever() -> None:
    async with serving(SLOW, max_concurrent_requests=1) as service:
        first = ask(service)
        await running(service)
        refused = await service.chat()
        assert refused.status == 503
        assert refused.error["code"] == "overloaded"
        assert refused.headers["retry-after"] == "1"
        assert (await first).status == 200


async def test_who_waits_is_answered_once_there_is_room() -> None:
    async with serving(SLOW, max_concurrent_requests=1, admission=AdmissionRules(max_queue_requests=2)) as service:
        whole, streamed = ask(service), ask(service, stream=True)
        await waiting(service, 1)
        third = ask(service)
        await waiting(service, 2)
        refused = await service.chat()
        assert refused.status == 503
        assert refused.error["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert (await whole).status == (await third).status == 200
        events = (await streamed).events
        assert [event == "[DONE]" for event in events].count(True) == 1
        reasons = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
        assert [reason for reason in reasons if reason] == ["stop"]
        assert len(service.engine.requests) == 3
        assert 'rejections_total{reason="queue_full"} 1.0' in await service.metrics()


async def test_a_client_that_leaves_the_queue_costs_nothing() -> None:
    async with serving(SLOW, max_concurrent_requests=1, admission=AdmissionRules(max_queue_requests=1)) as service:
        first = ask(service)
        await running(service)
        gone = ask(service)
        await waiting(service, 1)
        gone.cancel()
        await waiting(service, 0)
        again = ask(service)
        await waiting(service, 1)
        assert (await first).status == (await again).status == 200
        assert len(service.engine.requests) == 2
        await service.idle()


async def test_deadlines_are_total() -> None:
    async with serving(SLOW, max_concurrent_requests=1, admission=AdmissionRules(max_queue_requests=4)) as service:
        body = {"model": "fake", "messages": MESSAGES}
        first = ask(service)
        await running(service)
        shed = await service.post("/v1/chat/completions", body, headers={"x-request-timeout": "0.1"})
        assert shed.status == 504
        assert "nothing was computed" in shed.error["message"]
        assert len(service.engine.requests) == 1
        assert (await first).status == 200
        late = await service.post("/v1/chat/completions", body, headers={"x-request-timeout": "0.1"})
        assert late.status == 504
        assert "0.1 s (x-request-timeout)" in late.error["message"]
        wrong = await service.post("/v1/chat/completions", body, headers={"x-request-timeout": "soon"})
        assert wrong.status == 400
        assert wrong.error["param"] == "x-request-timeout"
        await service.idle()


async def test_the_longest_wait() -> None:
    rules = AdmissionRules(max_queue_requests=4, max_wait_s=0.1)
    async with serving(SLOW, max_concurrent_requests=1, admission=rules) as service:
        first = ask(service)
        await running(service)
        refused = await service.chat()
        assert refused.status == 503
        assert refused.error["code"] == "queue_timeout"
        assert (await first).status == 200


async def test_answers_are_shortened_only_while_many_wait_and_say_so() -> None:
    rules = AdmissionRules(max_queue_requests=2, degrade=(DegradeRule(0.4, 3),))
    async with serving(SLOW, max_concurrent_requests=1, admission=rules) as service:
        first = ask(service)
        await running(service)
        second = ask(service)  # nobody waits when it comes
        await waiting(service, 1)
        third = ask(service)
        await waiting(service, 2)
        replies = [await one for one in (first, second, third)]
        assert [reply.headers.get("x-degraded") for reply in replies] == [None, None, "max_tokens=3"]
        assert [reply.json["usage"]["completion_tokens"] for reply in replies] == [8, 8, 3]
        assert replies[2].json["choices"][0]["finish_reason"] == "length"


def tiered(spill_over: str) -> Fleet:
    routing = {"spill_over": spill_over, "max_in_flight": 8}
    fleet = Fleet(entry(tier="golden", precision="float32", routing=routing), entry(tier="int8", precision="int8"))
    for engine in fleet.all:
        engine.script = SLOW
    return fleet


@pytest.mark.parametrize("spill_over", ["never", "default"])
async def test_a_lower_tier_while_many_wait_for_those_who_named_none(spill_over: str) -> None:
    rules = AdmissionRules(max_queue_requests=3, degrade=(DegradeRule(0.2, lower_tier=True), DegradeRule(0.5, 3)))
    async with tiered(spill_over).served(max_concurrent_requests=1, admission=rules) as service:
        asking = [ask(service)]
        await running(service)
        for number, fields in enumerate(({}, {}, {"service_tier": "golden"}), start=1):
            asking.append(ask(service, **fields))
            await waiting(service, number)
        replies = [await one for one in asking]
        assert [reply.headers.get("x-degraded") for reply in replies] == [None, None, "tier=int8", "max_tokens=3"]
        assert [reply.json["service_tier"] for reply in replies] == ["golden", "golden", "int8", "golden"]
        assert replies[2].headers["x-served-by"] == "fake:int8"


async def test_a_tier_that_was_named_is_lowered_only_where_it_may_spill_over() -> None:
    rules = AdmissionRules(max_queue_requests=2, degrade=(DegradeRule(0.2, 3, lower_tier=True),))
    async with tiered("always").served(max_concurrent_requests=1, admission=rules) as service:
        asking = [ask(service)]
        await running(service)
        asking.append(ask(service))
        await waiting(service, 1)
        asking.append(ask(service, service_tier="golden", stream=True))
        last = [await one for one in asking][-1]
        assert last.headers["x-degraded"] == "max_tokens=3, tier=int8"
        assert {event["service_tier"] for event in last.events[:-1]} == {"int8"}


async def test_who_is_in_the_lowest_tier_already_stays() -> None:
    rules = AdmissionRules(max_queue_requests=2, degrade=(DegradeRule(0.2, lower_tier=True),))
    keys = KeyRing([ApiKey(id="k", name="k", digest=digest_of("secret"), scope=Scope(tiers=("golden",)))])
    headers = {"authorization": "Bearer secret"}
    async with tiered("default").served(
        max_concurrent_requests=1, admission=rules, tenants=Tenants(keys=keys)
    ) as service:
        body = {"model": "fake", "messages": MESSAGES}
        asking = []
        for number in range(3):
            asking.append(asyncio.create_task(service.post("/v1/chat/completions", body, headers=headers)))
            await (waiting(service, number) if number else running(service))
        replies = [await one for one in asking]
        assert [reply.json["service_tier"] for reply in replies] == ["golden"] * 3, "the key may use no other"
        assert not any("x-degraded" in reply.headers for reply in replies)


async def test_who_is_shed_pays_nothing() -> None:
    """Refused by admission: neither the request nor its tokens are charged, and the key's next one passes."""
    rules = AdmissionRules(max_queue_requests=1, max_wait_s=0.2)
    key = ApiKey(
        id="k", name="k", digest=digest_of("secret"), limits=Limits(requests_per_minute=3, tokens_per_minute=10_000)
    )
    tenants = Tenants(keys=KeyRing([key]), limits=MemoryLimits())
    headers = {"authorization": "Bearer secret"}
    async with serving(SLOW, max_concurrent_requests=1, admission=rules, tenants=tenants) as service:

        def post() -> asyncio.Task[Reply]:
            body = {"model": "fake", "messages": MESSAGES, "max_tokens": 8}
            return asyncio.create_task(service.post("/v1/chat/completions", body, headers=headers))

        first = post()
        await running(service)
        waits = post()
        await waiting(service, 1)
        shed = [await post() for _ in range(5)]
        assert {(reply.status, reply.error["code"]) for reply in shed} == {(503, "queue_full")}
        assert (await waits).error["code"] == "queue_timeout"
        used = await first
        assert used.headers["x-ratelimit-remaining-requests"] == "2"
        again = await post()
        assert (again.status, again.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        # Of the tokens those of the two that ran alone are gone (their prompts and 8 tokens each).
        spent = sum(reply.json["usage"]["total_tokens"] for reply in (used, again))
        third = await post()
        left = int(third.headers["x-ratelimit-remaining-tokens"])
        assert 10_000 - spent - 200 < left <= 10_000


async def test_drain_with_a_queue() -> None:
    async with serving(SLOW, max_concurrent_requests=1, admission=AdmissionRules(max_queue_requests=4)) as service:
        accepted = [ask(service) for _ in range(3)]
        await waiting(service, 2)
        service.app.state.gateway.begin_drain()
        refused = await service.chat()
        assert refused.error["code"] == "shutting_down"
        assert await service.app.state.gateway.wait_idle(5.0)
        assert [(await reply).status for reply in accepted] == [200, 200, 200]


async def test_keys_take_turns() -> None:
    rules = AdmissionRules(max_queue_requests=8)
    async with serving(SLOW, max_concurrent_requests=1, admission=rules, api_keys=("flood", "other")) as service:
        order: list[str] = []

        async def chat(key: str) -> None:
            body = {"model": "fake", "messages": MESSAGES}
            reply = await service.post(
                "/v1/chat/completions",
                body,
                headers={"authorization": f"Bearer {key}"},
            )
            assert reply.status == 200
            order.append(key)

        tasks = [asyncio.create_task(chat("flood"))]
        await running(service)
        for num in range(3):
            tasks.append(asyncio.create_task(chat("flood")))
            await waiting(service, num + 1)
        tasks.append(asyncio.create_task(chat("other")))
        await asyncio.gather(*tasks)
        assert order == ["flood", "flood", "other", "flood", "flood"]


def record_with(**fields: object) -> RequestRecord:
    return RequestRecord(request_id="r", metrics=None, **fields)  # type: ignore[arg-type]


def test_whose_turn_and_which_share() -> None:
    key = ApiKey("k_1", "one", b"", scope=Scope(tiers=("int*", "gold")))
    assert caller_of(record_with(key=key), {"client": ("10.0.0.1", 5)}) == "k_1"
    assert caller_of(record_with(), {"client": ("10.0.0.1", 5)}) == "10.0.0.1"
    assert caller_of(record_with(), {"client": None}) == ""
    assert tier_of(record_with(key=key)) == "gold"
    assert tier_of(record_with(key=key, asked_tier="auto")) == "gold"
    assert tier_of(record_with(key=key, asked_tier="int8")) == "int8"
    assert tier_of(record_with()) == ""
