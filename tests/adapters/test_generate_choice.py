from __future__ import annotations

from typing import Any

import pytest

from llm_inference.adapters.generate_choice import Answer, Choice, Piece
from llm_inference.adapters.generate_prompt import PreparedPrompt
from llm_inference.engine.types import Delta, SamplingParams, Usage
from tests.adapters.replay import outcome, request, usage_of

PROMPT = PreparedPrompt((1, 2, 3), "<p>ab", "<p>ab", False, "ab")


def feed(choice: Choice, *pieces: Piece) -> list[Delta]:
    return [delta for piece in pieces if not choice.finished and (delta := choice.feed(piece)) is not None]


def texts(*parts: str) -> list[Piece]:
    return [*(Piece(text=part) for part in parts), Piece(final=True, finish_reason="stop")]


def choice(*, prompts: tuple[str, ...] = (), **sampling: Any) -> Choice:
    return Choice(0, SamplingParams(**sampling), count=len, prompts_to_strip=prompts)


def answer(*, echo: bool = False, strips_prompt: bool = False, **sampling: Any) -> Answer:
    params = SamplingParams(**sampling)
    return Answer(request(echo=echo, **sampling), params, PROMPT, count=len, strips_prompt=strips_prompt)


@pytest.mark.parametrize(
    ("word", "max_tokens", "reason"),
    [
        ("stop", 3, "stop"),
        ("eos_token", 3, "stop"),
        ("stop_sequence", None, "stop"),
        ("length", None, "length"),
        ("abort", None, "abort"),
        (None, 3, "length"),
        ("", 4, "stop"),
        ("something new", None, "stop"),
    ],
)
def test_finish_reasons(word: str | None, max_tokens: int | None, reason: str) -> None:
    deltas = feed(choice(max_tokens=max_tokens), Piece(text="abc"), Piece(final=True, finish_reason=word))
    assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("abc", reason)


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (("a", "b", "c"), "c"),
        (("abc",), "c"),
        (("ab",), ""),
        (("a",), "a"),  # it ends before it is the prompt
        (("a", "x"), "ax"),
        (("<p>", "abab"), "ab"),  # as sent, special tokens and all; taken off once
        (("x", "ab"), "xab"),
    ],
)
def test_the_prompt_is_taken_off(parts: tuple[str, ...], shown: str) -> None:
    assert outcome(feed(choice(prompts=("ab", "<p>ab")), *texts(*parts))).text == shown


def test_stop_strings_count_after_the_first_tokens() -> None:
    pieces = [Piece(text="x", token_ids=(i,)) for i in range(6)]
    got = outcome(feed(choice(stop=("xx",), min_tokens=2), *pieces))
    assert (got.text, got.stop_reason) == ("xx", "xx")


@pytest.mark.parametrize(("include", "text", "ids"), [(False, "a", (1,)), (True, "ab", (1, 2))])
def test_stop_tokens(include: bool, text: str, ids: tuple[int, ...]) -> None:
    pieces = [Piece(text="a", token_ids=(1,)), Piece(text="b", token_ids=(2,)), Piece(text="c", token_ids=(3,))]
    got = outcome(feed(choice(stop_token_ids=(2,), include_stop_str_in_output=include), *pieces))
    assert (got.text, got.token_ids, got.finish_reason, got.stop_reason) == (text, ids, "stop", 2)


def test_what_was_held_back_comes_at_the_end() -> None:
    deltas = feed(choice(stop=("abc",)), *texts("a", "b"))
    assert [delta.text for delta in deltas] == ["ab"]


def test_nothing_to_say_is_no_delta() -> None:
    assert choice().feed(Piece()) is None


def test_usage_as_the_engine_reports_it() -> None:
    got = answer()
    deltas = got.feed(0, Piece(text="a", prompt_tokens=9, completion_tokens=1, cached_tokens=4))
    assert deltas[0].usage == Usage(9, 1, 4)
    assert deltas[0].prompt_token_ids == PROMPT.token_ids
    last = got.feed(0, Piece(final=True, finish_reason="stop", completion_tokens=2))
    assert usage_of(last) == Usage(9, 2, 4)
    assert last[0].timing is not None
    assert last[0].prompt_token_ids is None
    assert got.feed(0, Piece(text="late")) == []


def test_usage_is_counted_at_the_end_where_it_is_not_reported() -> None:
    got = answer(n=2)
    assert got.feed(0, Piece(text="abc"))[0].usage is None
    got.feed(0, Piece(final=True))
    assert usage_of(got.feed(1, Piece(text="de", final=True))) == Usage(3, 5)


def test_the_prompt_is_echoed_once_for_each_choice() -> None:
    got = answer(echo=True, n=2, strips_prompt=True)
    deltas = [delta for index in (0, 1) for piece in texts("ab", "!") for delta in got.feed(index, piece)]
    assert [outcome(deltas, index).text for index in (0, 1)] == ["ab!", "ab!"]
