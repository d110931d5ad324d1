from __future__ import annotations

import asyncio
import math

import aiohttp
import msgspec
import pytest

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.errors import EngineError, InvalidRequestError, OverloadedError
from llm_inference.gateway import generation
from tests.gateway.serving import MESSAGES, serving, until

CHAT = {"messages": MESSAGES}
PATH = "/v1/chat/completions"


async def test_streamed_equals_whole() -> None:
    async with serving(FakeScript(answers=["Grüße, 世界 👋🏽!"])) as service:
        whole = (await service.chat()).json["choices"][0]
        events = (await service.chat(stream=True)).events
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
        assert text == whole["message"]["content"] == "Grüße, 世界 👋🏽!"
        assert not any("\ufffd" in str(event) for event in events)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("no such grammar", param="response_format"), 400, None),
        (OverloadedError("full", retry_after_s=2.5), 503, "overloaded"),
        (EngineError("died"), 500, "server_error"),
        (RuntimeError("secret inside"), 500, "server_error"),
    ],
)
async def test_failure_before_the_first_delta_is_plain_json(
    stream: bool, error: Exception, status: int, code: str | None
) -> None:
    async with serving(FakeScript(fail_after=0, error=error, first_delay_s=0.01)) as service:
        reply = await service.chat(stream=stream)
        assert reply.status == status
        assert reply.headers["content-type"] == "application/json"
        assert reply.error["code"] == code
        assert "secret" not in reply.text
        assert reply.headers.get("retry-after") == ("3" if status == 503 else None)
        await service.idle()


async def test_failure_after_three_tokens_is_one_error_event_and_the_end() -> None:
    async with serving(FakeScript(answers=["abcdef"], fail_after=3)) as service:
        reply = await service.chat(stream=True)
        assert reply.status == 200
        events = reply.events
        texts = [event["choices"][0]["delta"].get("content") for event in events[:-1]]
        assert texts == ["", "a", "b", "c"]
        assert events[-1]["error"]["code"] == "server_error"
        assert "[DONE]" not in events
        assert (await service.chat()).status == 500


async def test_foreign_failure_in_a_stream_tells_nothing_of_the_inside() -> None:
    async with serving(FakeScript(answers=["abc"], fail_after=1, error=RuntimeError("secret"))) as service:
        reply = await service.chat(stream=True)
        assert reply.events[-1]["error"]["type"] == "server_error"
        assert "secret" not in reply.text


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_aborts_the_work(stream: bool) -> None:
    async with serving(FakeScript(answers=["x" * 50], hang_after=3 if stream else 0)) as service:
        if stream:
            async with service.session.post(service.url + PATH, json={**CHAT, "stream": True}) as reply:
                assert (await reply.content.readuntil(b"\n\n")).startswith(b"data: ")
                reply.close()
        else:
            with pytest.raises(asyncio.TimeoutError):
                await service.session.post(
                    service.url + "/v1/chat/completions", json=CHAT, timeout=aiohttp.ClientTimeout(total=0.1)
                )
        await until(lambda: service.engine.aborted)
        await service.idle()
        assert service.engine.stats().num_running == 0
        assert 'llm_inference_requests_aborted_total{model="fake"} 1.0' in await service.metrics()


async def test_client_that_leaves_while_the_status_is_held() -> None:
    async with serving(FakeScript(first_delay_s=60)) as service:
        with pytest.raises(asyncio.TimeoutError):
            await service.session.post(
                service.url + "/v1/chat/completions",
                json={**CHAT, "stream": True},
                timeout=aiohttp.ClientTimeout(total=0.1),
            )
        await until(lambda: service.engine.aborted)
        await service.idle()


async def test_one_failing_prompt_closes_the_others() -> None:
    def answers(request: object) -> list[str]:
        if "bad" in str(request):
            raise EngineError("this one fails")
        return ["y" * 10_000]

    async with serving(FakeScript(answers=answers, delay_s=0.01)) as service:
        reply = await service.complete(prompt=["good", "bad", "good too"])
        assert reply.status == 500
        await service.idle()
        assert len(service.engine.aborted) == 2
        assert service.engine.stats().num_running == 0


async def test_leaving_a_list_of_prompts_aborts_all() -> None:
    async with serving(FakeScript(hang_after=1)) as service:
        body = {"prompt": ["one", "two", "three"], "stream": True}
        async with service.session.post(service.url + "/v1/completions", json=body) as reply:
            await reply.content.readuntil(b"\n\n")
            reply.close()
        await until(lambda: len(service.engine.aborted) == 3)
        await service.idle()


async def test_time_limit_before_and_in_a_stream() -> None:
    async with serving(FakeScript(hang_after=2), request_timeout_s=0.5) as service:
        whole = await service.chat()
        assert whole.status == 504
        assert whole.error["code"] == "request_timeout"
        events = (await service.chat(stream=True)).events
        assert events[-1]["error"]["code"] == "request_timeout"
        assert len(service.engine.aborted) == 2


async def test_permit_comes_back_with_the_last_byte() -> None:
    async with serving(FakeScript(answers=["abc"], hang_after=1), max_concurrent_requests=1) as service:
        async with service.session.post(service.url + PATH, json={**CHAT, "stream": True}) as reply:
            await reply.content.readuntil(b"\n\n")
            refused = await service.chat()
            assert refused.status == 503
            assert refused.error["code"] == "overloaded"
            assert int(refused.headers["retry-after"]) >= 1
            assert (await service.get("/health")).status == 200
            reply.close()
        await service.idle()
        service.engine.script = FakeScript()
        assert (await service.chat()).status == 200


class _Broken(FakeEngine):
    """Ends without finishing, or gives up by itself."""

    def __init__(self, end: str) -> None:
        super().__init__("fake")
        self._end = end

    async def generate(self, request):  # type: ignore[no-untyped-def]
        async for delta in super().generate(request):
            if delta.finish_reason is None:
                yield delta
            elif self._end == "abort":
                yield msgspec.structs.replace(delta, finish_reason="abort")


@pytest.mark.parametrize("end", ["silence", "abort"])
async def test_engine_that_breaks_its_contract_is_an_error_not_an_answer(end: str) -> None:
    async with serving(engine=_Broken(end)) as service:
        assert (await service.chat()).error["code"] == "server_error"
        events = (await service.chat(stream=True)).events
        assert "error" in events[-1]
        assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, math.inf, -1e30])
@pytest.mark.parametrize("stream", [False, True])
async def test_no_nan_or_infinity_leaves(logprob: float, stream: bool) -> None:
    async with serving(FakeScript(logprob=logprob)) as service:
        chat = await service.chat(logprobs=True, top_logprobs=3, top_k=1, stream=stream)
        text = await service.complete(logprobs=3, logit_bias={"65": -100}, echo=True, stream=stream)
        for reply in (chat, text):
            assert reply.status == 200
            assert not any(word in reply.text for word in ("NaN", "Infinity", "nan", "inf,"))
        if not stream:
            entries = chat.json["choices"][0]["logprobs"]["content"]
            assert all(-9999.0 <= entry["logprob"] <= 0 for entry in entries)
            assert all(-9999.0 <= top["logprob"] <= 0 for entry in entries for top in entry["top_logprobs"])
            assert text.json["choices"][0]["logprobs"]["token_logprobs"][0] is None


async def test_stream_headers() -> None:
    async with serving() as service:
        headers = (await service.chat(stream=True)).headers
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        assert "content-length" not in headers


async def test_an_answer_holds_so_many_logprobs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed they pass; whole they would fill the memory, with echo and choices a million times over."""
    monkeypatch.setattr(generation, "MAX_REPLY_LOGPROBS", 60)
    monkeypatch.setattr(generation, "_THREAD_LOGPROBS", 10)
    script = FakeScript(answers=["x" * 100])
    async with serving(script) as service:
        fields = {"logprobs": 3, "max_tokens": 15}
        whole = await service.complete(**fields)
        assert whole.status == 200
        assert len(whole.json["choices"][0]["logprobs"]["tokens"]) == 15
        refused = await service.complete(**{**fields, "max_tokens": 16})
        assert (refused.status, refused.error["param"]) == (400, "logprobs")
        several = await service.complete(**fields, prompt=["a", "b"])
        assert (several.status, several.error["param"]) == (400, "logprobs")
        events = (await service.complete(**{**fields, "max_tokens": 50}, stream=True)).events
        assert events[-1] == "[DONE]"
        await service.idle()
        assert len(service.engine.aborted) == 3


async def test_an_answer_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MAX_REPLY_CHARS", 60)
    async with serving(FakeScript(answers=["x" * 100])) as service:
        assert (await service.chat(stream=True)).events[-1] == "[DONE]", "a stream holds nothing"
        reply = await service.chat()
        assert (reply.status, reply.error["code"]) == (500, "server_error")
        await service.idle()
        assert service.engine.aborted
