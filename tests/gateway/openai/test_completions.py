from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from llm_inference.engine.byte_tokens import BOS_TOKEN_ID
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.errors import ContextLengthError, InvalidRequestError
from llm_inference.gateway.openai.completions import check_prompt, generate_requests
from llm_inference.gateway.openai.intake import Envelope
from llm_inference.gateway.openai.protocol import CompletionRequest
from tests.gateway.openai.schemas import PublicSchemas
from tests.gateway.serving import official, serving, until

INFO = FakeEngine("fake", max_model_len=100).info


def built(**fields: Any):  # type: ignore[no-untyped-def]
    return generate_requests(CompletionRequest.parse({"prompt": "x", **fields}), Envelope("id", 0, "fake"), INFO)


async def test_answer_and_chunks_have_the_public_shape(public_schemas: PublicSchemas) -> None:
    async with serving() as service:
        for fields in ({}, {"logprobs": 2}, {"prompt": ["a", "b"], "n": 2}):
            answer = (await service.complete(**fields)).json
            public_schemas.check(answer, "CreateCompletionResponse")
            events = (await service.complete(stream=True, **fields)).events
            assert events.pop() == "[DONE]"
            for event in events:
                for choice in event["choices"]:
                    assert choice["finish_reason"] in (None, "stop")
                    choice["finish_reason"] = "stop"  # the public document has one type for answers and chunks
                public_schemas.check(event, "CreateCompletionResponse")


async def test_choices_stand_in_the_order_of_the_prompts() -> None:
    def answers(request: Any) -> list[str]:
        return [f"{request.prompt}{index}" for index in range(2)]

    async with serving(FakeScript(answers=answers)) as service:
        fields = {"prompt": ["a", "bbb", "cc"], "n": 2}
        choices = (await service.complete(**fields)).json["choices"]
        expected = {0: "a0", 1: "a1", 2: "bbb0", 3: "bbb1", 4: "cc0", 5: "cc1"}
        assert {choice["index"]: choice["text"] for choice in choices} == expected
        assert [choice["index"] for choice in choices] == list(range(6))
        texts = dict.fromkeys(range(6), "")
        finishes = dict.fromkeys(range(6), 0)
        for event in (await service.complete(stream=True, **fields)).events[:-1]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
                finishes[choice["index"]] += choice["finish_reason"] is not None
        assert texts == expected
        assert set(finishes.values()) == {1}


async def test_prompts_run_at_the_same_time() -> None:
    async with serving(FakeScript(answers=["x"], first_delay_s=2)) as service:
        started = time.perf_counter()
        assert (await service.complete(prompt=["a"] * 8)).status == 200
        assert time.perf_counter() - started < 14  # one after the other they take 16 s


async def test_echo_of_token_ids_with_logprobs() -> None:
    """C3, the shape: k + 1 entries, the first without a number."""
    async with serving() as service:
        prompt = list(b"abcd")
        (choice,) = (await service.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=1)).json["choices"]
        assert choice["text"] == "abcda"
        logprobs = choice["logprobs"]
        assert [len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [5] * 4
        assert logprobs["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
        assert logprobs["top_logprobs"][0] is None
        assert all(max(top.values()) == -0.5 for top in logprobs["top_logprobs"][1:])
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
        assert choice["finish_reason"] == "length"
        (scored,) = (await service.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=0)).json["choices"]
        assert len(scored["logprobs"]["tokens"]) == 4
        assert scored["text"] == "abcd"


async def test_logprobs_zero_has_no_alternatives() -> None:
    async with serving() as service:
        (choice,) = (await service.complete(logprobs=0)).json["choices"]
        assert choice["logprobs"]["top_logprobs"] is None
        assert len(choice["logprobs"]["token_logprobs"]) == 5


async def test_token_ids_come_back_where_asked() -> None:
    async with serving() as service:
        (choice,) = (await service.complete(prompt="hi", return_token_ids=True)).json["choices"]
        assert choice["token_ids"] == list(b"hi")
        assert choice["prompt_token_ids"] == [BOS_TOKEN_ID, *b"hi"]
        events = (await service.complete(prompt="hi", return_token_ids=True, stream=True)).events[:-1]
        assert events[0]["choices"][0]["prompt_token_ids"] == [BOS_TOKEN_ID, *b"hi"]
        assert [event["choices"][0]["token_ids"] for event in events] == [[104], [105]]
        bare = (await service.complete(prompt="hi", return_token_ids=True, add_special_tokens=False)).json
        assert bare["choices"][0]["prompt_token_ids"] == list(b"hi")


async def test_usage_is_summed_over_prompts() -> None:
    async with serving(FakeScript(answers=["abc"])) as service:
        fields = {"prompt": [[1], [2, 3]], "n": 2}
        usage = (await service.complete(**fields)).json["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 12)
        events = (await service.complete(stream=True, stream_options={"include_usage": True}, **fields)).events
        assert events[-2]["usage"] == usage
        assert sum("usage" in event for event in events[:-1]) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_that_are_refused(stream: bool) -> None:
    """L2, L3: 400 that names the field; nobody else is harmed."""
    empties: list[Any] = ["", [""], [], [[]], [[1], []], None, {}, 7, True]
    ids: list[Any] = [258, 10**12, -1, 1.5, "7", True, None, 2**70]
    async with serving(FakeScript(delay_s=0.01)) as service:
        running = asyncio.create_task(service.complete(prompt="x" * 50))
        await until(lambda: service.engine.requests)
        for prompt in [*empties, *([1, token] for token in ids), *([[1], [token]] for token in ids)]:
            reply = await service.complete(prompt=prompt, stream=stream)
            assert reply.status == 400, prompt
            assert reply.error["param"] == "prompt", prompt
        assert (await running).json["choices"][0]["text"] == "x" * 50
        assert len(service.engine.requests) == 1
        assert (await service.complete(prompt=[257])).status == 200


async def test_official_client() -> None:
    async with serving(FakeScript(answers=["lo"])) as service, official(service) as client:
        answer = await client.completions.create(model="fake", prompt="hel", echo=True, logprobs=1)
        assert answer.choices[0].text == "hello"
        assert answer.choices[0].logprobs is not None
        assert answer.choices[0].logprobs.token_logprobs[0] is None  # type: ignore[index]
        texts = [chunk.choices[0].text async for chunk in await client.completions.create(
            model="fake", prompt="hel", stream=True
        )]  # fmt: skip
        assert "".join(texts) == "lo"


def test_one_engine_request_per_prompt() -> None:
    requests = built(prompt=["a", "b"], echo=True, logprobs=2, add_special_tokens=False, priority=1)
    assert [request.request_id for request in requests] == ["id-0", "id-1"]
    assert [request.prompt for request in requests] == ["a", "b"]
    assert all(request.echo and not request.add_special_tokens and request.priority == 1 for request in requests)
    assert requests[0].sampling.prompt_logprobs == requests[0].sampling.logprobs == 2
    (alone,) = built(prompt=[[5, 6]], logprobs=1)
    assert alone.request_id == "id"
    assert alone.prompt == (5, 6)
    assert alone.sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream": True, "best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"prompt": ["a"] * 1000, "n": 100}, "n"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_contradictions(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        built(**fields)
    assert caught.value.param == param


def test_token_ids_longer_than_the_context_never_reach_the_engine() -> None:
    with pytest.raises(ContextLengthError, match=r"101 tokens.*100 tokens"):
        check_prompt((1,) * 101, INFO)
    check_prompt((1,) * 100, INFO)
    check_prompt("text of any length " * 100, INFO)
