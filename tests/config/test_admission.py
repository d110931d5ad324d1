from __future__ import annotations

import pytest
from pydantic import ValidationError

from llm_inference.config.admission import AdmissionConfig
from llm_inference.gateway.admission.rules import NO_QUEUE, AdmissionRules, DegradeRule
from llm_inference.serve.http import admission_rules


def test_nobody_waits_by_default() -> None:
    assert admission_rules(AdmissionConfig()) == NO_QUEUE


def test_every_key_arrives_at_the_gateway() -> None:
    given = {
        "max_queue_requests": 7,
        "max_queue_tokens": 900,
        "max_wait_s": 2.0,
        "ageing_s": 3.0,
        "max_kv_cache_usage": 0.9,
        "shares": {"gold": 3.0},
        "degrade": [{"when_queue_above": 0.5, "max_tokens": 64}, {"when_queue_above": 0.9, "lower_tier": True}],
    }
    assert set(given) == set(AdmissionConfig.model_fields)
    assert admission_rules(AdmissionConfig.model_validate(given)) == AdmissionRules(
        max_queue_requests=7,
        max_queue_tokens=900,
        max_wait_s=2.0,
        ageing_s=3.0,
        max_kv_cache_usage=0.9,
        shares={"gold": 3.0},
        degrade=(DegradeRule(0.5, 64), DegradeRule(0.9, lower_tier=True)),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_queue_requests": -1},
        {"max_wait_s": 0.0},
        {"ageing_s": 0.0},
        {"max_kv_cache_usage": 1.5},
        {"shares": {"gold": 0.0}},
        {"degrade": [{"when_queue_above": 1.0, "max_tokens": 64}]},
        {"degrade": [{"when_queue_above": 0.5}]},
        {"max_queue": 5},
    ],
)
def test_what_makes_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AdmissionConfig.model_validate(wrong)
