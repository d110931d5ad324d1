from __future__ import annotations

from typing import Any

import pytest

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.errors import EngineError
from tests.gateway.serving import Reply, Service, serving

PATH = "/v1/batch_completions"


async def batch(service: Service, **fields: Any) -> Reply:
    return await service.post(PATH, {"prompts": ["a", "bbbb"], **fields})


async def test_answers_in_the_order_of_the_prompts() -> None:
    async with serving() as service:
        reply = await batch(service, max_tokens=3, temperature=0.8, model="fake")
        assert reply.status == 200
        assert reply.json == [
            {"text": "a", "tokens_used": 1, "finish_reason": "stop"},
            {"text": "bbb", "tokens_used": 3, "finish_reason": "length"},
        ]
        assert [request.sampling.temperature for request in service.engine.requests] == [0.8, 0.8]
        assert len({request.request_id for request in service.engine.requests}) == 2


async def test_size_of_a_batch() -> None:
    async with serving(engine=FakeEngine("fake", max_batch_size=3)) as service:
        assert (await batch(service, prompts=["a"] * 3)).status == 200
        reply = await batch(service, prompts=["a"] * 4)
        assert (reply.status, reply.error["param"]) == (400, "prompts")
        assert "at most 3" in reply.error["message"]
    async with serving(engine=FakeEngine("fake", max_batch_size=None)) as service:
        assert (await batch(service, prompts=["a"] * 129)).status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompts": []}, "prompts"),
        ({"prompts": [""]}, "prompts"),
        ({"prompts": "a"}, "prompts"),
        ({"prompts": [[1]]}, "prompts"),
        ({"prompts": None}, "prompts"),
        ({"prompt": "a"}, "prompt"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
async def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    async with serving() as service:
        reply = await batch(service, **fields)
        assert (reply.status, reply.error["param"]) == (400, param)
        assert (await batch(service, n=1, stream=False)).status == 200


async def test_one_failure_fails_the_batch() -> None:
    def answers(request: Any) -> list[str]:
        if request.prompt == "a":
            raise EngineError("this one")
        return ["x" * 100]

    async with serving(FakeScript(answers=answers, delay_s=0.001)) as service:
        assert (await batch(service)).status == 500
        await service.idle()
        assert len(service.engine.aborted) == 1
