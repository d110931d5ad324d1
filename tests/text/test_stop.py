from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_inference.text.stop import StopChecker


def run(chunks: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None, list[str]]:
    """(all text, matched, the pieces as sent)."""
    checker = StopChecker(stops, include)
    sent: list[str] = []
    for chunk in chunks:
        text, matched = checker.add(chunk)
        sent.append(text)
        if matched is not None:
            return "".join(sent), matched, sent
    sent.append(checker.flush())
    return "".join(sent), None, sent


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """By definition: the shortest beginning of the text that ends with a stop string; the longest such string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


def test_stop_string_over_several_pieces_is_never_sent() -> None:  # T3
    text, matched, sent = run(["AB", "C DE", "FG", "HI", "J", "KL"], ["DEFGHIJ"])
    assert (text, matched) == ("ABC ", "DEFGHIJ")
    assert sent == ["AB", "C ", "", "", ""]


def test_prefix_that_does_not_complete_is_sent_later() -> None:  # T3
    text, matched, sent = run(["AB DEF", "GH", "X", "Y"], ["DEFGHIJ"])
    assert (text, matched) == ("AB DEFGHXY", None)
    assert sent == ["AB ", "", "DEFGHX", "Y", ""]


def test_holds_back_no_more_than_needed() -> None:
    checker = StopChecker(["aab"], False)
    assert checker.add("aaa") == ("a", None)  # "aa" may still become "aab"
    assert checker.add("a") == ("a", None)
    assert checker.flush() == "aa"
    assert checker.flush() == ""


def test_include_keeps_the_match_and_drops_the_rest() -> None:
    assert run(["one END two"], ["END"], include=True)[:2] == ("one END", "END")
    assert run(["one END two"], ["END"])[:2] == ("one ", "END")


def test_first_completed_wins_and_longest_of_equals() -> None:
    assert run(["xabcd"], ["abcd", "bc"])[:2] == ("xa", "bc")
    assert run(["xabc"], ["bc", "abc", "c"])[:2] == ("x", "abc")


def test_nothing_comes_after_a_match() -> None:
    checker = StopChecker(["."])
    assert checker.add("a.b") == ("a", ".")
    assert checker.add("more") == ("", ".")
    assert checker.flush() == ""


@pytest.mark.parametrize("stops", [[], [""], ["", ""]])
def test_no_or_empty_stop_strings_pass_everything(stops: list[str]) -> None:
    assert run(["a", "", "b"], stops) == ("ab", None, ["a", "", "b", ""])


def test_text_after_a_flush_starts_anew() -> None:
    checker = StopChecker(["ab"])
    assert checker.add("xa") == ("x", None)
    assert checker.flush() == "a"
    assert checker.add("b") == ("b", None)


@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    include=st.booleans(),
)
def test_any_chunking_equals_the_definition(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert run(chunks, stops, include)[:2] == reference(text, stops, include)


@given(text=st.text(alphabet="ab", max_size=20), stops=st.lists(st.text(alphabet="ab", min_size=1), max_size=3))
def test_held_text_is_always_a_beginning_of_a_stop_string(text: str, stops: list[str]) -> None:
    checker = StopChecker(stops)
    sent = ""
    for i, character in enumerate(text):
        piece, matched = checker.add(character)
        sent += piece
        if matched is not None:
            return
        held = text[len(sent) : i + 1]
        suffixes = [text[k : i + 1] for k in range(i + 2)]
        expected = next(s for s in suffixes if not s or any(stop.startswith(s) for stop in stops))
        assert held == expected
