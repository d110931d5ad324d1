"""The front's part: what is refused before anything runs, how many inputs are under way, what a cancellation leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import EmbedRequest
from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError, LLMInferenceError
from llm_inference.native import embed
from llm_inference.native.client import Item
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.plan import NativePlan, make_plan
from llm_inference.native.prepare import Preparer
from llm_inference.native.request import CoreRequest
from tests.native.tiny_encoders import add_files, save_tiny_encoder


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> NativePlan:
    directory: Path = tmp_path_factory.mktemp("bert")
    save_tiny_encoder(directory)
    add_files(directory, pooling="pooling_mode_cls_token", max_tokens=10)
    return make_plan(ModelConfig(name="tiny", model=str(directory)), progress=False)


@pytest.fixture(scope="module")
def preparer(plan: NativePlan) -> Preparer:
    return plan.make_preparer()


def prepare(
    plan: NativePlan, preparer: Preparer, *inputs: str | tuple[int, ...], **fields: object
) -> list[CoreRequest]:
    request = EmbedRequest(request_id="x", model="tiny", inputs=inputs, **fields)  # type: ignore[arg-type]
    return embed.prepare(request, preparer, plan.embedding, "core-1")


def test_inputs_become_requests_of_one_group(plan: NativePlan, preparer: Preparer) -> None:
    first, second = prepare(plan, preparer, "w0 w1", (7, 8), priority=3)
    assert first.prompt_token_ids == (2, 5, 6, 3)  # [CLS] w0 w1 [SEP]
    assert second.prompt_token_ids == (7, 8)
    assert (first.request_id, second.request_id) == ("core-1/0", "core-1/1")
    assert first.pooling is not None
    assert (first.pooling.mode, first.pooling.normalize, first.pooling.group) == ("cls", True, "core-1")
    assert (first.priority, first.sampling.max_tokens) == (3, 0)
    bare = prepare(plan, preparer, "w0", add_special_tokens=False, pooling="mean", normalize=False, dimensions=4)[0]
    assert bare.prompt_token_ids == (5,)
    assert bare.pooling is not None
    assert (bare.pooling.mode, bare.pooling.normalize, bare.pooling.dimensions) == ("mean", False, 4)


def test_a_long_text_of_few_tokens_is_no_long_input(plan: NativePlan, preparer: Preparer) -> None:
    """Spaces are dropped and an unknown word is one token, however long it is."""
    text = "w1" + " " * 100_000 + "x" * 50_000
    assert prepare(plan, preparer, text)[0].prompt_token_ids == (2, 6, 1, 3)


@pytest.mark.parametrize("given", ["w1 " * 9, (5,) * 11])
def test_what_is_too_long_is_refused_by_name_and_number(
    plan: NativePlan, preparer: Preparer, given: str | tuple[int, ...]
) -> None:
    with pytest.raises(ContextLengthError, match=r"input\[1\].* 10 tokens; the input has 11 tokens") as caught:
        prepare(plan, preparer, "w1 " * 8, given)
    assert caught.value.param == "input[1]"
    assert caught.value.public_code == "context_length_exceeded"


def test_what_is_wrong_is_refused_by_name(plan: NativePlan, preparer: Preparer) -> None:
    with pytest.raises(InvalidRequestError, match="input: prompt holds the token id 500") as caught:
        prepare(plan, preparer, (500,))
    assert caught.value.param == "input"
    with pytest.raises(InvalidRequestError, match="have 32 numbers") as caught:
        prepare(plan, preparer, "w1", dimensions=33)
    assert caught.value.param == "dimensions"
    with pytest.raises(InvalidRequestError, match=r"input\[0\]: the prompt is empty"):
        prepare(plan, preparer, "", "w1", add_special_tokens=False)


class StubClient:
    """Answers one input at a time; `most_tokens` were under way at most."""

    def __init__(self, error: LLMInferenceError | None = None, hang: bool = False) -> None:
        self.submitted: dict[str, int] = {}
        self.aborted: list[str] = []
        self.most_tokens = 0
        self.most_inputs = 0
        self._error = error
        self._hang = hang
        self._tasks: list[asyncio.Task[None]] = []

    def submit(self, request: CoreRequest, queue: asyncio.Queue[Item]) -> asyncio.Queue[Item]:
        self.submitted[request.request_id] = len(request.prompt_token_ids)
        self.most_tokens = max(self.most_tokens, sum(self.submitted.values()))
        self.most_inputs = max(self.most_inputs, len(self.submitted))
        if not self._hang:
            self._tasks.append(asyncio.create_task(self._answer(request, queue)))
        return queue

    async def _answer(self, request: CoreRequest, queue: asyncio.Queue[Item]) -> None:
        await asyncio.sleep(0.001 * (hash(request.request_id) % 3))
        number = float(request.request_id.rpartition("/")[2])
        vector = np.array([number], "<f4").tobytes()
        output = SequenceOutput(request_id=request.request_id, index=0, finish_reason="length", vector=vector)
        queue.put_nowait(self._error or output)

    def release(self, request_id: str) -> None:
        del self.submitted[request_id]

    def abort(self, request_id: str, index: int | None = None) -> None:
        del self.submitted[request_id]
        self.aborted.append(request_id)


async def test_vectors_come_in_order_and_few_are_under_way(plan: NativePlan, preparer: Preparer) -> None:
    requests = prepare(plan, preparer, *[(5,) * (1 + i % 10) for i in range(500)])
    client = StubClient()
    result = await embed.run(client, requests, 40)  # type: ignore[arg-type]
    assert [np.frombuffer(vector, "<f4")[0] for vector in result.vectors] == list(range(500))
    assert result.usage.prompt_tokens == sum(1 + i % 10 for i in range(500))
    assert 30 < client.most_tokens <= 40
    assert client.submitted == {}
    assert client.aborted == []


async def test_an_input_over_the_window_goes_alone(plan: NativePlan, preparer: Preparer) -> None:
    client = StubClient()
    await embed.run(client, prepare(plan, preparer, (5,) * 9, (5,) * 9), 4)  # type: ignore[arg-type]
    assert client.most_inputs == 1


async def test_an_error_ends_the_request_and_aborts_the_rest(plan: NativePlan, preparer: Preparer) -> None:
    client = StubClient(error=EngineError("died"))
    with pytest.raises(EngineError, match="died"):
        await embed.run(client, prepare(plan, preparer, "w1", "w2", "w3"), 100)  # type: ignore[arg-type]
    assert client.submitted == {}
    assert len(client.aborted) == 3


async def test_a_cancellation_aborts_what_is_under_way(plan: NativePlan, preparer: Preparer) -> None:
    client = StubClient(hang=True)
    requests = prepare(plan, preparer, *["w1"] * 30)
    task = asyncio.create_task(embed.run(client, requests, 10))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert len(client.submitted) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.submitted == {}
    assert client.aborted == ["core-1/0", "core-1/1", "core-1/2"]
