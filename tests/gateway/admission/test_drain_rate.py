from __future__ import annotations

import pytest

from llm_inference.gateway.admission.drain_rate import DrainRate


def test_nothing_is_known_of_few_departures() -> None:
    rate = DrainRate(8)
    assert rate.wait_s(0, 0.0) is None
    for now in range(3):
        rate.departed(float(now))
    assert rate.per_second(2.0) is None


def test_even_departures() -> None:
    rate = DrainRate(8)
    for number in range(200):
        rate.departed(number * 0.25)
    assert rate.per_second(199 * 0.25) == pytest.approx(4.0)
    assert rate.wait_s(7, 199 * 0.25) == pytest.approx(2.0)


def test_silence_counts_and_old_departures_do_not() -> None:
    rate = DrainRate(8)
    for number in range(11):
        rate.departed(number * 0.1)
    assert rate.per_second(1.05) == pytest.approx(10.0)  # a gap as usual
    assert rate.per_second(10.0) == pytest.approx(1.0)
    assert rate.per_second(60.0) is None
    rate.departed(60.0)
    rate.forget()
    assert rate.per_second(60.0) is None


def test_those_who_came_in_a_burst_leave_in_a_burst() -> None:
    rate = DrainRate(4)
    for burst in range(4):
        for number in range(4):
            rate.departed(10.0 * burst + 0.1 * number)
    assert rate.wait_s(0, 31.0) == pytest.approx(9.0)
    assert rate.wait_s(3, 31.0) == pytest.approx(9.3)
    assert rate.wait_s(5, 39.0) == pytest.approx(11.1)  # the second of the burst after that
    late = rate.wait_s(0, 42.0)  # nobody has left when they should have
    average = rate.per_second(42.0)
    assert average is not None
    assert late == pytest.approx(1 / average)


def test_even_departures_leave_evenly_whatever_the_places() -> None:
    rate = DrainRate(100)
    for number in range(200):
        rate.departed(number * 0.25)
    for ahead in (0, 7, 150):
        assert rate.wait_s(ahead, 199 * 0.25) == pytest.approx((ahead + 1) * 0.25)
