from __future__ import annotations

import random

import pytest

from llm_inference.native.step_cost import StepCost


def test_before_the_first_step_nothing_costs_anything() -> None:
    assert StepCost().estimate(5) == (0.0, 0.0)


def test_a_line_is_found() -> None:
    cost, rng = StepCost(), random.Random(0)
    for _ in range(300):
        num_tokens = rng.randint(1, 20)
        cost.observe(num_tokens, 0.02 + 0.001 * num_tokens)
    step_s, row_s = cost.estimate(8)
    assert step_s == pytest.approx(0.028, rel=0.02)
    assert row_s == pytest.approx(0.001, rel=0.05)


def test_noise_averages_out() -> None:
    cost, rng = StepCost(), random.Random(1)
    for _ in range(500):
        num_tokens = rng.choice([1, 1, 1, 5, 9])
        cost.observe(num_tokens, (0.02 + 0.002 * num_tokens) * rng.uniform(0.8, 1.3))
    assert cost.estimate(1)[1] == pytest.approx(0.002, rel=0.5)


def test_equal_steps_leave_the_guess() -> None:
    """16 tokens more double a step of one; a step of many tokens has them in it already."""
    cost = StepCost()
    for _ in range(100):
        cost.observe(1, 0.032)
    assert cost.estimate(1) == (pytest.approx(0.032), pytest.approx(0.002))


def test_what_was_is_forgotten() -> None:
    cost = StepCost()
    for seconds in [0.1] * 200 + [0.01] * 300:
        cost.observe(1, seconds)
    assert cost.estimate(1)[0] == pytest.approx(0.01, rel=0.05)


def test_one_pause_of_the_machine_is_no_cost() -> None:
    cost = StepCost()
    for number in range(200):
        cost.observe(1 + number % 8, 0.02)
    cost.observe(8, 60.0)
    step_s, row_s = cost.estimate(8)
    assert step_s < 0.03
    assert row_s < 0.002


def test_nothing_is_ever_negative() -> None:
    cost = StepCost()
    for num_tokens, seconds in ((1, 0.05), (64, 0.001), (1, 0.05), (2, -1.0)):
        cost.observe(num_tokens, seconds)
        assert all(value >= 0 for n in (1, 64, 1000) for value in cost.estimate(n))
