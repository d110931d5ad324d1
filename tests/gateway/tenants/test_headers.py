from __future__ import annotations

import pytest

from llm_inference.gateway.tenants.headers import duration, limit_headers
from llm_inference.gateway.tenants.limits import State
from tests.gateway.tenants.charges import charges


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0004, "1ms"),
        (0.02, "20ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.999, "59.999s"),
        (360, "6m0s"),
        (61.25, "1m1.25s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_tightest_limit_of_each_unit_is_told() -> None:
    wanted = [
        *charges(requests_per_minute=10, tokens_per_minute=100, tokens_per_day=5),
        *charges(key="model:m", requests_per_minute=50, max_concurrent_requests=2),
    ]
    states = [State(9, 6.0), State(60, 24.0), State(1, 3.0), State(2, 57.6), State(1, 0.0)]
    assert dict(limit_headers(wanted, states)) == {
        b"x-ratelimit-limit-requests": b"50",
        b"x-ratelimit-remaining-requests": b"2",
        b"x-ratelimit-reset-requests": b"57.6s",
        b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"60",
        b"x-ratelimit-reset-tokens": b"24s",
    }
    assert limit_headers(charges(tokens_per_day=5), [State(1, 3.0)]) == ()
