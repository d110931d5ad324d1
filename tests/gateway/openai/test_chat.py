from __future__ import annotations

from typing import Any

import openai
import pytest

from llm_inference.engine.base import Capabilities
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.types import ChatPrompt
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai.chat import generate_request
from llm_inference.gateway.openai.intake import Envelope
from llm_inference.gateway.openai.protocol import ChatCompletionRequest
from tests.gateway.openai.schemas import PublicSchemas
from tests.gateway.serving import MESSAGES, official, serving

INFO = FakeEngine("fake").info
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "sub")]


def built(**fields: Any):  # type: ignore[no-untyped-def]
    parsed = ChatCompletionRequest.parse({"messages": MESSAGES, **fields})
    return generate_request(parsed, Envelope("id", 0, "fake"), INFO)


async def test_answer_has_the_public_shape(public_schemas: PublicSchemas) -> None:
    async with serving() as service:
        for fields in ({}, {"logprobs": True, "top_logprobs": 2}, {"tools": TOOLS, "tool_choice": "required"}):
            answer = (await service.chat(**fields)).json
            public_schemas.check(answer, "CreateChatCompletionResponse")
        assert answer["model"] == "fake"
        assert answer["id"].startswith("chatcmpl-")


async def test_chunks_have_the_public_shape(public_schemas: PublicSchemas) -> None:
    async with serving() as service:
        for fields in ({}, {"logprobs": True, "top_logprobs": 2}, {"tools": TOOLS, "tool_choice": "required"}):
            events = (await service.chat(stream=True, stream_options={"include_usage": True}, **fields)).events
            assert events.pop() == "[DONE]"
            assert len(events) >= 3
            for event in events:
                public_schemas.check(event, "CreateChatCompletionStreamResponse")


async def test_role_first_and_one_finish_reason_per_index() -> None:
    """C1, C2: choices of different lengths."""
    async with serving(FakeScript(answers=["a", "bbbb", "cc"])) as service:
        events = (await service.chat(stream=True, n=3)).events[:-1]
        texts = dict.fromkeys(range(3), "")
        finishes: dict[int, list[str]] = {index: [] for index in range(3)}
        begun: set[int] = set()
        for event in events:
            (choice,) = event["choices"]
            index, delta = choice["index"], choice["delta"]
            assert not finishes[index], "nothing comes after the end of a choice"
            assert ("role" in delta) == (index not in begun)
            begun.add(index)
            texts[index] += delta.get("content", "")
            assert choice["finish_reason"] in (None, "stop")
            if choice["finish_reason"]:
                finishes[index].append(choice["finish_reason"])
        assert texts == {0: "a", 1: "bbbb", 2: "cc"}
        assert finishes == {0: ["stop"], 1: ["stop"], 2: ["stop"]}


async def test_usage_only_in_one_last_chunk() -> None:
    """C5."""
    async with serving(FakeScript(answers=["abc"])) as service:
        events = (await service.chat(stream=True, stream_options={"include_usage": True})).events
        assert events[-1] == "[DONE]"
        assert [bool(event.get("usage")) for event in events[:-1]] == [False] * (len(events) - 2) + [True]
        assert events[-2]["choices"] == []
        whole = (await service.chat()).json["usage"]
        assert events[-2]["usage"] == whole
        assert whole["prompt_tokens"] == len("user: hello\n")
        assert whole["completion_tokens"] == 3
        assert whole["total_tokens"] == whole["prompt_tokens"] + 3
        assert not any(event.get("usage") for event in (await service.chat(stream=True)).events[:-1])


async def test_continuous_usage_counts_up() -> None:
    async with serving(FakeScript(answers=["abc"])) as service:
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = (await service.chat(stream=True, stream_options=options)).events[:-1]
        assert [event["usage"]["completion_tokens"] for event in events] == [1, 1, 2, 3, 3]


async def test_reasoning_under_both_names() -> None:
    async with serving(FakeScript(answers=["4"], reasoning="2 and 2")) as service:
        message = (await service.chat()).json["choices"][0]["message"]
        assert message["reasoning"] == message["reasoning_content"] == "2 and 2"
        assert message["content"] == "4"
        deltas = [event["choices"][0]["delta"] for event in (await service.chat(stream=True)).events[:-1]]
        assert [delta["reasoning"] for delta in deltas if "reasoning" in delta] == ["2 and 2"]
        assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["2 and 2"]


async def test_tool_call_whole_and_streamed() -> None:
    async with serving() as service:
        choice = {"type": "function", "function": {"name": "sub"}}
        whole = (await service.chat(tools=TOOLS, tool_choice=choice)).json["choices"][0]
        assert whole["finish_reason"] == "tool_calls"
        assert whole["message"]["content"] is None
        (call,) = whole["message"]["tool_calls"]
        assert call["type"] == "function"
        assert call["function"] == {"name": "sub", "arguments": "{}"}
        events = (await service.chat(tools=TOOLS, tool_choice=choice, stream=True)).events[:-1]
        fragments = [
            part for event in events for item in event["choices"] for part in item["delta"].get("tool_calls", [])
        ]
        assert [("id" in part, "type" in part, "name" in part["function"]) for part in fragments] == [
            (True, True, True),
            (False, False, False),
        ]
        assert "".join(part["function"]["arguments"] for part in fragments) == "{}"
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_logprobs_and_token_ids() -> None:
    async with serving(FakeScript(answers=["hé"])) as service:
        fields = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
        answer = (await service.chat(**fields)).json
        (choice,) = answer["choices"]
        content = choice["logprobs"]["content"]
        assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "hé"
        assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
        assert content[0]["top_logprobs"][0] == {"token": "h", "logprob": -0.5, "bytes": [104]}
        assert choice["token_ids"] == list("hé".encode())
        assert bytes(answer["prompt_token_ids"]) == b"user: hello\n"
        events = (await service.chat(stream=True, **fields)).events[:-1]
        streamed = [
            entry
            for event in events
            for item in event["choices"]
            for entry in (item.get("logprobs") or {"content": []})["content"]
        ]
        assert streamed == content
        ids = [token for event in events for item in event["choices"] for token in item.get("token_ids", [])]
        assert ids == choice["token_ids"]
        assert events[0]["prompt_token_ids"] == answer["prompt_token_ids"]


async def test_prompt_over_the_context_without_max_tokens() -> None:
    """L1."""
    async with serving(engine=FakeEngine("fake", max_model_len=20)) as service:
        reply = await service.chat(messages=[{"role": "user", "content": "x" * 30}])
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert "20" in reply.error["message"]
        assert "37" in reply.error["message"]
        assert "-" not in reply.error["message"].replace("'fake'", "")


async def test_requests_that_are_refused_leave_others_alone() -> None:
    """D2, L2, L4, L5, H7: plain 4xx JSON, also with stream=true, and the next request works."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"n": 0}, "n"),
        ({"n": 1_000_000}, "n"),
        ({"max_tokens": 1e12}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"logit_bias": {"258": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"seed": 2**63}, "seed"),
        ({"seed": True}, "seed"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop_token_ids": [258]}, "stop_token_ids"),
        ({"best_of": 2}, "best_of"),
        ({"num_beams": 2}, "num_beams"),
        ({"max_length": 20}, "max_length"),
        ({"temprature": 1}, "temprature"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strin"}}}},
         "response_format"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "mul"}}}, "tool_choice"),
        ({"model": "nobody"}, "model"),
    ]  # fmt: skip
    async with serving() as service:
        for fields, param in wrong:
            for stream in (False, True):
                reply = await service.chat(stream=stream, **fields)
                assert reply.status == (404 if "model" in fields else 400), fields
                assert reply.error["param"] == param, fields
                assert param.split(".")[0] in reply.error["message"], fields
        assert (await service.chat()).status == 200


async def test_nan_in_the_body_is_no_json() -> None:
    async with serving() as service:
        for value in (b"NaN", b"Infinity", b"1e999"):
            reply = await service.request(
                "POST",
                "/v1/chat/completions",
                data=b'{"messages": [{"role": "user", "content": "x"}], "temperature": ' + value + b"}",
                headers={"content-type": "application/json"},
            )
            assert reply.status == 400
            assert reply.error["code"] == "invalid_json"


async def test_engine_is_asked_and_its_reason_told() -> None:
    capabilities = Capabilities(fields={"n": "enforced"}, reasons={"seed": "its sampler has no seed."})
    async with serving(engine=FakeEngine("fake", capabilities=capabilities)) as service:
        reply = await service.chat(seed=7)
        assert reply.status == 400
        assert reply.error["param"] == "seed"
        assert "'fake'" in reply.error["message"]
        assert reply.error["message"].endswith("its sampler has no seed.")
        assert (await service.chat(seed=None, top_k=0, n=2, min_p=0, tools=[], presence_penalty=0)).status == 200


async def test_official_client() -> None:
    async with serving(FakeScript(answers=["Paris"])) as service, official(service) as client:
        answer = await client.chat.completions.create(model="fake", messages=MESSAGES)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == "Paris"
        assert answer._request_id
        stream = await client.chat.completions.create(
            model="fake",
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        assert text == "Paris"
        assert usage is not None
        assert usage.completion_tokens == 5
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody", messages=MESSAGES)  # type: ignore[arg-type]
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.chat.completions.create(model="fake", messages=MESSAGES, n=0)  # type: ignore[arg-type]
        assert wrong.value.param == "n"
        service.engine.script = FakeScript(answers=["abc"], fail_after=1)
        with pytest.raises(openai.APIError, match="fake engine failed"):
            async for _ in await client.chat.completions.create(
                model="fake",
                messages=MESSAGES,  # type: ignore[arg-type]
                stream=True,
            ):
                pass


def test_prompt_carries_template_settings() -> None:
    prompt = built(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low", tools=TOOLS).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    assert [tool["function"]["name"] for tool in prompt.tools] == ["add", "sub"]
    assert prompt.add_generation_prompt
    with pytest.raises(InvalidRequestError, match="reasoning_effort"):
        built(chat_template_kwargs={"reasoning_effort": "high"}, reasoning_effort="low")


def test_continuing_a_message() -> None:
    said = [*MESSAGES, {"role": "assistant", "content": "Well,"}]
    prompt = built(messages=said, continue_final_message=True).prompt
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)
    with pytest.raises(InvalidRequestError, match="last message"):
        built(continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="contradicts"):
        built(messages=said, continue_final_message=True, add_generation_prompt=True)
    assert not built(add_generation_prompt=False).prompt.add_generation_prompt


def test_request_fields_reach_the_engine() -> None:
    request = built(
        logprobs=True, top_logprobs=4, n=2, priority=-3, cache_salt="tenant", tools=TOOLS, tool_choice="auto"
    )
    assert (request.sampling.logprobs, request.sampling.n) == (4, 2)
    assert (request.priority, request.cache_salt, request.tool_choice) == (-3, "tenant", "auto")
    assert built(logprobs=True).sampling.logprobs == 0
    assert built().sampling.logprobs is None
    assert not built(tools=TOOLS, parallel_tool_calls=False).parallel_tool_calls
    with pytest.raises(InvalidRequestError, match="parallel_tool_calls"):
        built(parallel_tool_calls=False)
