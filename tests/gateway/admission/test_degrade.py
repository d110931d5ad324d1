from __future__ import annotations

import pytest

from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.gateway.admission.degrade import degraded, header_of, limit_of, lowers
from llm_inference.gateway.admission.rules import DegradeRule

RULES = (DegradeRule(0.5, 256), DegradeRule(0.9, 32))


@pytest.mark.parametrize(("filling", "limit"), [(0.0, None), (0.5, None), (0.51, 256), (0.9, 256), (1.0, 32)])
def test_the_strictest_rule_that_holds(filling: float, limit: int | None) -> None:
    assert limit_of(RULES, filling) == limit


def test_only_longer_answers_are_shortened() -> None:
    request = GenerateRequest(request_id="r", model="m", prompt="x", sampling=SamplingParams(max_tokens=32))
    assert degraded(request, 32) is request
    shorter = degraded(request, 16)
    assert shorter.sampling == SamplingParams(max_tokens=16)
    unbounded = GenerateRequest(request_id="r", model="m", prompt="x", sampling=SamplingParams(min_tokens=20))
    assert degraded(unbounded, 16).sampling == SamplingParams(max_tokens=16, min_tokens=16)
    assert header_of(16) == (b"x-degraded", b"max_tokens=16")


def test_a_lower_tier_is_a_rule_of_its_own() -> None:
    rules = (DegradeRule(0.5, lower_tier=True), DegradeRule(0.9, 32))
    assert [limit_of(rules, filling) for filling in (0.5, 0.6, 1.0)] == [None, None, 32]
    assert [lowers(rules, filling) for filling in (0.5, 0.6, 1.0)] == [False, True, True]
    assert not lowers(RULES, 1.0)
    assert header_of(None, "int8") == (b"x-degraded", b"tier=int8")
    assert header_of(16, "int8") == (b"x-degraded", b"max_tokens=16, tier=int8")
