"""How prompt tokens are shared out, against the rule written down independently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llm_inference.native.prefill_budget import PrefillBudget
from tests.native.scheduling import sequence


def share(budget: int, needs: list[int]) -> list[int]:
    """What prompts of `needs` tokens get, by place; 0 for those that get nothing."""
    prompts = [sequence(range(need)) for need in needs]
    shares = PrefillBudget(budget)
    for prompt in prompts:
        shares.offer(prompt)
    given_out = {id(prompt): count for prompt, count in shares.close()}
    return [given_out.get(id(prompt), 0) for prompt in prompts]


def test_what_fits_is_taken_whole() -> None:
    assert share(256, [100, 156]) == [100, 156]


def test_a_long_prompt_alone_gets_everything() -> None:
    assert share(256, [4000]) == [256]


def test_long_prompts_take_half_of_what_is_left_and_the_first_the_rest() -> None:
    assert share(256, [4000, 100, 300]) == [128 + 14, 100, 14]
    assert share(1, [10, 10]) == [1, 0]


def test_newcomers_share_with_long_prompts_only_if_much_shorter() -> None:
    shares = PrefillBudget(64)
    assert shares.is_worth(10**6)
    shares.offer(sequence(range(100)))
    assert shares.is_worth(50)
    assert not shares.is_worth(51)
    assert shares.rest == 32


@given(st.integers(0, 64), st.lists(st.integers(1, 100), max_size=8))
def test_the_budget_is_never_exceeded_and_never_idle(budget: int, needs: list[int]) -> None:
    given_out = share(budget, needs)
    assert sum(given_out) == min(budget, sum(needs))
    assert all(0 <= got <= need for got, need in zip(given_out, needs, strict=True))
    if needs and needs[0] > budget:
        assert 2 * given_out[0] >= budget
