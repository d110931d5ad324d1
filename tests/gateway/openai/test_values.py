from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai import values


def test_stop() -> None:
    assert values.stop_strings("a") == ("a",)
    assert values.stop_strings(["a", "bc"]) == ("a", "bc")
    assert values.stop_strings([]) == ()


def test_prompts_are_one_per_entry() -> None:
    assert values.prompts("a") == ("a",)
    assert values.prompts(["a", "b"]) == ("a", "b")
    assert values.prompts([1, 2]) == ((1, 2),)
    assert values.prompts([[1, 2], [3]]) == ((1, 2), (3,))


def test_logit_bias() -> None:
    assert values.logit_bias({"7": -100, "0": 0.5}) == {7: -100.0, 0: 0.5}
    assert values.logit_bias({}) == {}


def test_range() -> None:
    values.check_range((), "tokens", 10)
    values.check_range((0, 9), "tokens", 10)
    values.check_range((2**31 - 1,), "tokens", None)
    for ids, size in (((10,), 10), ((-1,), 10), ((0, 2**31), None)):
        with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
            values.check_range(ids, "tokens", size)


@pytest.mark.parametrize(
    ("check", "field", "wrong"),
    [
        (values.stop_strings, "stop", [7, [""], ["a", 1], ["a"] * 17, ["x" * 513], {"a": 1}, True, ""]),
        (values.stop_token_ids, "stop_token_ids", [7, [1.0], [True], ["1"], [-1], [2**40], [1] * 129]),
        (
            values.logit_bias,
            "logit_bias",
            [
                [],
                {"x": 1},
                {"-1": 1},
                {"1.5": 1},
                {"": 1},
                {" 1": 1},
                {"1_0": 1},
                {"١": 1},
                {"9" * 11: 1},
                {"1": "1"},
                {"1": True},
                {"1": None},
                {"1": 100.1},
                {"1": -101},
                {"1": float("nan")},
                {str(token): 0 for token in range(1025)},
                {"4294967296": 1},
            ],
        ),
        (values.prompts, "prompt", ["", [], [""], [[]], ["a", 1], [1, "a"], [[1], "a"], [1.5], [True], [[True]], 7]),
        (lambda value: values.texts(value, "prompts"), "prompts", ["a", [], [""], [1], [["a"]]]),
    ],
)
def test_what_is_refused(check: Callable[[Any], Any], field: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(InvalidRequestError) as caught:
            check(value)
        assert caught.value.param == field
        assert caught.value.message.startswith(f"{field}: ")
