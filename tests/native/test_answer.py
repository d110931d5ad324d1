"""What all choices of one answer share is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.engine.types import GenerateRequest, GenerationDefaults, SamplingParams
from llm_inference.native.answer import Answer
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.prepare import Prepared
from llm_inference.native.request import CoreRequest, SampledToken
from llm_inference.native.wire import PromptLogprobs
from llm_inference.text.parsing import PLAIN_TEXT
from llm_inference.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.load(default_model_dir)


def test_the_echoed_logprobs_are_one_object_for_all_choices(tokenizer: Tokenizer) -> None:
    """A long prompt's alternatives are megabytes: 64 choices must not hold them 64 times."""
    sampling = SamplingParams(n=3, max_tokens=1, prompt_logprobs=1, logprobs=1)
    request = GenerateRequest(request_id="r", model="m", prompt="Hello there", sampling=sampling, echo=True)
    ids = tuple(tokenizer.encode("Hello there"))
    core_request = CoreRequest(
        request_id="r", prompt_token_ids=ids, sampling=sampling.resolve(GenerationDefaults(temperature=0.0))
    )
    answer = Answer(request, Prepared(core_request, PLAIN_TEXT), tokenizer)
    scored = tuple(SampledToken(token_id, -1.0, ((token_id, -1.0),)) for token_id in ids[1:])
    last = SampledToken(5, -2.0, ((5, -2.0),))
    outputs = [SequenceOutput(request_id="r", index=i, tokens=(last,), finish_reason="length") for i in range(3)]
    deltas = answer.take([PromptLogprobs("r", scored), *outputs])
    echoes = [delta for delta in deltas if delta.text == "Hello there"]
    assert [delta.index for delta in echoes] == [0, 1, 2]
    assert echoes[0].logprobs is not None
    assert len(echoes[0].logprobs) == len(ids)
    assert all(echo.logprobs is echoes[0].logprobs for echo in echoes)
    assert answer.finished
