"""From a request to what a worker is told."""

from __future__ import annotations

from typing import Any

import pytest

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.library.plan import LibraryPlan
from llm_inference.adapters.library.sampling import worker_sampling
from llm_inference.adapters.library.wire import Grammar, WorkerSampling
from llm_inference.engine.types import GenerateRequest, GenerationDefaults, ModelInfo, SamplingParams
from llm_inference.errors import InvalidRequestError


def told(prompts: PromptSide, defaults: dict[str, Any] | None = None, **said: Any) -> WorkerSampling:
    plan = LibraryPlan(
        info=ModelInfo(name="m", max_model_len=50, engine="onnx", max_num_seqs=4),
        defaults=GenerationDefaults(**(defaults or {})),
        eos_token_ids=(1,),
        argv=(),
        setup={},
    )
    request = GenerateRequest(request_id="r", model="m", prompt=(2, 3, 4), sampling=SamplingParams(**said))
    prompt = prompts.prepare(request, 50)
    return worker_sampling(request, prompt, prompts, plan, lambda request, sampling: None)[1]


def test_everything_is_said(prompts: PromptSide) -> None:
    sampling = told(prompts)
    assert sampling == WorkerSampling(max_tokens=47, temperature=1.0, eos_token_ids=(1,))


def test_defaults_stand_where_the_request_is_silent(prompts: PromptSide) -> None:
    defaults = {"temperature": 0.5, "top_k": 7, "max_tokens": 60}
    sampling = told(prompts, defaults, top_k=-1, min_p=0.1)
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.max_tokens) == (0.5, 0, 0.1, 47)


def test_a_temperature_that_is_almost_nothing_is_greedy(prompts: PromptSide) -> None:
    assert told(prompts, temperature=1e-6).temperature == 0.0


def test_seeds_are_folded(prompts: PromptSide) -> None:
    assert told(prompts, seed=2**31 + 5).seed == 5
    assert 0 <= (told(prompts, seed=-1).seed or 0) < 2**31


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 1}, "logprobs"),
        ({"logit_bias": {9999: 1.0}}, "logit_bias"),
        ({"forced_eos_token_id": 9999}, "forced_eos_token_id"),
        ({"min_tokens": 48}, "min_tokens"),
        ({"n": 5}, "n"),
        ({"num_beams": 5}, "num_beams"),
    ],
)
def test_what_cannot_be(prompts: PromptSide, said: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        told(prompts, **said)
    assert caught.value.param == param


def test_the_library_has_a_word(prompts: PromptSide) -> None:
    plan = LibraryPlan(
        info=ModelInfo(name="m", max_model_len=50, engine="onnx"),
        defaults=GenerationDefaults(temperature=0.25),
        eos_token_ids=(),
        argv=(),
        setup={},
    )
    request = GenerateRequest(request_id="r", model="m", prompt=(2, 3))
    seen: list[SamplingParams] = []

    def translate(request: GenerateRequest, sampling: SamplingParams) -> Grammar:
        seen.append(sampling)
        return Grammar("regex", "a")

    _, sampling = worker_sampling(request, prompts.prepare(request, 50), prompts, plan, translate)
    assert sampling.grammar == Grammar("regex", "a")
    assert (seen[0].temperature, seen[0].max_tokens) == (0.25, 48), "resolved"
