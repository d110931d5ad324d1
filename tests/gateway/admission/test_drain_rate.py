from __future__ import annotations

import pytest

from llm_inference.gateway.admission.drain_rate import DrainRate


def test_nothing_is_known_of_few_departures() -> None:
    rate = DrainRate()
    assert rate.wait_s(0, 0.0) is None
    for now in range(3):
        rate.departed(float(now))
    assert rate.per_second(2.0) is None


def test_even_departures() -> None:
    rate = DrainRate()
    for number in range(200):
        rate.departed(number * 0.25)
    assert rate.per_second(199 * 0.25) == pytest.approx(4.0)
    assert rate.wait_s(7, 199 * 0.25) == pytest.approx(2.0)


def test_silence_counts_and_old_departures_do_not() -> None:
    rate = DrainRate()
    for number in range(11):
        rate.departed(number * 0.1)
    assert rate.per_second(1.05) == pytest.approx(10.0)  # a gap as usual
    assert rate.per_second(10.0) == pytest.approx(1.0)
    assert rate.per_second(60.0) is None
    rate.departed(60.0)
    rate.forget()
    assert rate.per_second(60.0) is None
