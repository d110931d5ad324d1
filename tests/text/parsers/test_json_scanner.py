"""Against the standard library's json: what is accepted, where it ends, what is given out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llm_inference.text.parsers.json_scanner import JsonScanner

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def scan(text: str, size: int) -> tuple[JsonScanner, int, str]:
    """The scanner, how far it came, and what it gave out."""
    scanner, pieces, pos = JsonScanner(), [], 0
    while pos < len(text) and not scanner.done and not scanner.failed:
        end, piece = scanner.feed(text[: pos + size], pos)
        pieces.append(piece)
        pos = end
    return scanner, pos, "".join(pieces)


@given(value=JSON, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]), size=st.integers(1, 9))
def test_valid_json_comes_through_unchanged(value: Any, ascii_only: bool, indent: int | None, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    scanner, end, out = scan(text + "; rest", size)
    assert scanner.done
    assert end == len(text)
    assert out == text


@given(text=st.text(alphabet='{}[]",:\\ \n01-.eEtrufalsn', max_size=14), size=st.integers(1, 4))
@example(text="[1,]", size=1)
@example(text='{"a":1,}', size=1)
@example(text="[01]", size=1)
@example(text="[-]", size=1)
@example(text="[1.]", size=2)
def test_the_same_texts_are_accepted_as_by_the_standard_library(text: str, size: int) -> None:
    scanner, end, out = scan(f"[{text}]", size)
    try:
        json.loads(f"[{text}]", strict=False, parse_constant=lambda constant: 1 / 0)
        expected = True
    except (ValueError, ZeroDivisionError):
        expected = False
    assert (scanner.done and end == len(text) + 2) == expected
    if expected:
        json.loads(out)  # strictly: raw control characters were escaped


@pytest.mark.parametrize("bad", ["tru", "nul", "01", "1.", "-", "1e", "+1", ".5", "NaN", "Infinity", "0x1", "--1"])
def test_scalars_that_are_none_fail_and_stay_held(bad: str) -> None:
    scanner, _, out = scan(f"[{bad}]", 1)
    assert scanner.failed
    assert out + scanner.held in (f"[{bad}", "[")


@pytest.mark.parametrize("bad", ["\\x", "\\u12g", "\\'", "\\ud8 "])
def test_escapes_that_are_none_fail_and_stay_held(bad: str) -> None:
    scanner, pos, out = scan(f'"a{bad}"', 1)
    assert scanner.failed
    assert out == '"a'
    assert f'"a{bad}'.startswith(out + scanner.held)
    assert pos == len(out + scanner.held)


def test_an_endless_number_is_malformed() -> None:
    scanner, _, _ = scan("[" + "1" * 5000 + "]", 3)
    assert scanner.failed


def test_depth_costs_no_recursion() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    scanner, end, out = scan(deep, len(deep))
    assert scanner.done
    assert (end, out) == (len(deep), deep)
