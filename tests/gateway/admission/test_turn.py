"""The queue through the real application: what clients see of it."""

from __future__ import annotations

import asyncio

from llm_inference.engine.fake import FakeScript
from llm_inference.gateway.admission.rules import AdmissionRules, DegradeRule
from llm_inference.gateway.admission.turn import caller_of, tier_of
from llm_inference.gateway.record import RequestRecord
from llm_inference.gateway.tenants.key import ApiKey, Scope
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
