"""What is sent for fields that change the call itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from llm_inference.adapters import openai, vllm
from llm_inference.adapters.openai_body import make_body
from llm_inference.adapters.profile import Profile
from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.errors import InvalidRequestError


def body(profile: Profile, **sampling: Any) -> dict[str, Any]:
    request = GenerateRequest(request_id="r", model="m", prompt="hello", sampling=SamplingParams(**sampling))
    return make_body(request, profile, "theirs", max_tokens=None, upstream_stops=True)


def test_the_best_of_several_is_not_streamed() -> None:
    plain = body(openai.OURS)
    assert plain["stream"] is True
    assert "stream_options" in plain
    best = body(openai.OURS, best_of=3)
    assert best["stream"] is False
    assert "stream_options" not in best
    assert best["best_of"] == 3


def test_a_profile_may_have_the_last_word() -> None:
    profile = dataclasses.replace(openai.OURS, rewrite=lambda made: {"wrapped": made})
    assert set(body(profile)) == {"wrapped"}
    assert body(profile)["wrapped"]["model"] == "theirs"


def test_what_is_refused_is_refused_here_too() -> None:
    with pytest.raises(InvalidRequestError, match=r"best_of: the engine 'vllm' refuses it: .*use n"):
        body(vllm.PROFILE, best_of=3)


def test_our_own_server_is_asked_for_token_ids() -> None:
    assert body(openai.OURS)["return_token_ids"] is True
    assert "return_token_ids" not in body(openai.PROFILE)
