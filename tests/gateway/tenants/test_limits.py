from __future__ import annotations

import calendar

import pytest

from llm_inference.gateway.tenants.limits import NANO, NO_LIMITS, Limits, Subject, charges_of, window_at


def test_a_key_says_what_the_defaults_leave_open() -> None:
    own, defaults = Limits(requests_per_minute=5), Limits(requests_per_minute=9, tokens_per_day=7)
    assert own.over(defaults) == Limits(requests_per_minute=5, tokens_per_day=7)
    assert NO_LIMITS.over(defaults) == defaults


def test_a_request_is_charged_for_what_is_limited_and_nothing_else() -> None:
    limits = Limits(requests_per_minute=3, tokens_per_minute=100, max_concurrent_requests=2, price_per_month=1.5)
    found = charges_of(Subject("key:k", "this API key", limits), 40, 7, 0.0)
    assert [(one.name, one.kind, one.limit, one.amount) for one in found] == [
        ("requests_per_minute", "rate", 3, 1),
        ("tokens_per_minute", "rate", 100, 40),
        ("max_concurrent_requests", "lease", 2, 1),
        ("price_per_month", "budget", 3 * NANO // 2, 7),
    ]
    assert [one.key for one in found] == [
        "key:k:requests_per_minute",
        "key:k:tokens_per_minute",
        "key:k:max_concurrent_requests",
        "key:k:price_per_month:1970-01",
    ]
    assert charges_of(Subject("key:k", "", Limits(max_prompt_tokens=1, max_output_tokens=1)), 1, 1, 0.0) == []


@pytest.mark.parametrize(
    ("at", "day", "month", "month_end"),
    [
        ((2026, 11, 30, 23, 59, 59), "2026-11-30", "2026-11", (2026, 12, 1)),
        ((2026, 12, 31, 0, 0, 0), "2026-12-31", "2026-12", (2027, 1, 1)),
        ((2028, 2, 29, 12, 0, 0), "2028-02-29", "2028-02", (2028, 3, 1)),
    ],
)
def test_windows_are_those_of_the_calendar(
    at: tuple[int, ...], day: str, month: str, month_end: tuple[int, int, int]
) -> None:
    now = float(calendar.timegm((*at, 0, 0, 0)))
    midnight = calendar.timegm((at[0], at[1], at[2], 0, 0, 0)) + 86_400
    assert window_at(now, "day") == (day, midnight * 1000)
    assert window_at(now, "month") == (month, calendar.timegm((*month_end, 0, 0, 0)) * 1000)
