"""One suite, every engine: what a client of the HTTP API sees, whichever engine answers."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from tests.conformance.client import (
    CHAT_PATH,
    COMPLETION_PATH,
    TEXT,
    body_of,
    chat,
    complete,
    content,
    frames,
    get,
    post,
    streamed,
)
from tests.conformance.engines import MAX_MODEL_LEN, Case
from tests.conformance.fields import TOOL
from tests.conformance.test_engines import endless, needs

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="package")]


@pytest.mark.parametrize("path", [CHAT_PATH, COMPLETION_PATH], ids=["chat", "completion"])
async def test_a_stream_says_what_a_whole_reply_says(case: Case, path: str) -> None:
    whole = await post(case, path, max_tokens=24)
    stream = await post(case, path, max_tokens=24, stream=True, stream_options={"include_usage": True})
    assert stream.status == 200
    text, reason, usage = streamed(stream)
    assert text == content(whole)
    assert text
    assert reason == whole.json["choices"][0]["finish_reason"]
    counted = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage[name] for name in counted] == [whole.json["usage"][name] for name in counted]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_the_shape_of_a_reply(case: Case) -> None:
    reply = (await chat(case)).json
    assert reply["id"]
    assert (reply["object"], reply["model"]) == ("chat.completion", case.model)
    assert reply["choices"][0]["message"]["role"] == "assistant"
    reply = (await complete(case)).json
    assert reply["id"]
    assert (reply["object"], reply["model"]) == ("text_completion", case.model)


async def test_a_stop_string_that_a_stream_must_not_show(case: Case) -> None:
    whole = content(await complete(case, max_tokens=16))
    stop = whole[4:8]
    stream = await complete(case, max_tokens=16, stop=stop, stream=True, stream_options={"include_usage": True})
    text, reason, _ = streamed(stream)
    assert text == whole[: whole.index(stop)]
    assert reason == "stop"


async def test_a_forced_call_in_a_stream(case: Case) -> None:
    if case.echoes:
        pytest.skip("no model")
    needs(case, "tool_choice")
    choice = {"type": "function", "function": {"name": "get_weather"}}
    stream = await chat(case, tools=[TOOL], tool_choice=choice, max_tokens=96, stream=True)
    assert stream.status == 200, stream.text
    choices = [choice for event in stream.events[:-1] for choice in event["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]
    assert [call["function"]["name"] for call in calls if call["function"].get("name")] == ["get_weather"]
    assert [call["id"] for call in calls if call.get("id")], "the first fragment has the call's id"
    assert {call["index"] for call in calls} == {0}
    assert isinstance(json.loads("".join(call["function"].get("arguments") or "" for call in calls))["city"], str)
    assert not "".join(choice["delta"].get("content") or "" for choice in choices).strip()
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]][-1] in ("tool_calls", "stop")


async def test_usage_is_counted_as_the_tokenizer_counts(case: Case) -> None:
    usage = (await complete(case, max_tokens=5, **endless(case))).json["usage"]
    assert usage["prompt_tokens"] == len(case.encode(TEXT))
    assert usage["completion_tokens"] == 5


async def test_several_prompts_are_answered_in_their_order(case: Case) -> None:
    prompts = [f"{TEXT} {number}" for number in range(3)]
    reply = await complete(case, prompt=prompts)
    assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2]
    if case.exact:
        alone = [content(await complete(case, prompt=prompt)) for prompt in prompts]
        assert [content(reply, index) for index in range(3)] == alone


async def test_n(case: Case) -> None:
    needs(case, "n")
    reply = await chat(case, n=2)
    assert content(reply, 0)
    assert content(reply, 1)
    assert len(reply.json["choices"]) == 2


async def test_a_client_that_leaves_ends_the_work(case: Case) -> None:
    body = body_of(COMPLETION_PATH, case, max_tokens=300, stream=True, prompt="a " * 90, **endless(case))
    async with aiohttp.ClientSession() as session, session.post(case.url + COMPLETION_PATH, json=body) as response:
        async for _ in frames(response):
            break
        response.close()
    deadline = asyncio.get_running_loop().time() + 10
    while case.num_running():
        assert asyncio.get_running_loop().time() < deadline, "the work goes on without a reader"
        await asyncio.sleep(0.02)
    assert content(await complete(case))


async def test_a_prompt_over_the_context_is_a_400(case: Case) -> None:
    for stream in (False, True):
        reply = await complete(case, prompt="word " * 4 * MAX_MODEL_LEN, stream=stream)
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert str(MAX_MODEL_LEN) in reply.error["message"]
    reply = await chat(case, max_tokens=MAX_MODEL_LEN)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"


async def test_an_unknown_model_is_a_404(case: Case) -> None:
    reply = await complete(case, model="nobody")
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"


async def test_an_unknown_field_is_a_400(case: Case) -> None:
    reply = await complete(case, temprature=1)
    assert reply.status == 400
    assert reply.error["param"] == "temprature"


async def test_sixteen_streams_at_once(case: Case) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    replies = await asyncio.gather(*(complete(case, prompt=f"{TEXT} {number}", **options) for number in range(16)))
    texts = [streamed(reply)[0] for reply in replies]
    assert all(texts)


async def test_models_health_and_metrics(case: Case) -> None:
    [card] = (await get(f"{case.url}/v1/models")).json["data"]
    assert card["id"] == case.model
    assert (await get(f"{case.url}/ready")).status == 200
    assert (await get(f"{case.url}/health")).json["models"][case.model] == {
        "live": True, "ready": True, "progressing": True, "reason": "",
    }  # fmt: skip
    assert f'model="{case.model}"' in (await get(f"{case.url}/metrics")).text
