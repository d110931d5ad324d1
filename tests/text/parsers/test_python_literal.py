"""Against ast.literal_eval: the same values, and nothing else than literals."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_inference.text.parsers.python_literal import LiteralScanner, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def scan(text: str, size: int) -> tuple[LiteralScanner, int]:
    scanner, pos = LiteralScanner(), 0
    while pos < len(text) and not scanner.done and not scanner.failed:
        pos = scanner.feed(text[: pos + size], pos)
    return scanner, pos


@given(value=VALUES, size=st.integers(1, 6))
def test_what_repr_writes_is_found_and_converted(value: Any, size: int) -> None:
    text = repr(value)
    scanner, end = scan(text + ", b=1)", size)
    assert scanner.done
    assert end == len(text)
    assert scanner.text == text
    assert json.loads(to_json(text)) == as_json(ast.literal_eval(text))


@pytest.mark.parametrize(
    "text",
    [
        '"""a"b\nc"""', "'''it's'''", r"'\x41\u00e9\U0001F389\101\n\\'", "''", '""', '""""""', "(1)", "((1,),)",
        " [1, 2,] ", "{'a': {'b': [True, None]}}", "-1", "+2", "1.", ".5e-3", "'\\\n'", "[ ]", "( )", "{ }",
    ],
)  # fmt: skip
def test_hand_written_literals(text: str) -> None:
    expected = as_json(ast.literal_eval(text.strip()))
    assert json.loads(to_json(text)) == expected
    for size in (1, 2, 100):
        scanner, end = scan(text + ")", size)
        assert scanner.done
        assert end == len(text)


def test_the_constants_of_json_and_unknown_escapes() -> None:
    assert to_json("[true, false, null]") == "[true, false, null]"
    assert json.loads(to_json(r"'\d+\.'")) == r"\d+\."  # as Python reads it
    assert to_json(r"'\ud83d\ude00'").encode()
    assert to_json(r"'\ud83d'") == r'"\ud83d"'
    assert to_json("'é'") == '"é"'


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "f()", "1+1", "a.b", "__import__('os')", "[1", "[1 2]", "{1: 2}", "{'a' 1}", "{'a': 1", "{1, 2}",
        "1e999", "b'x'", "f'x'", "...", "1_000", "0x10", "1j", "'a' 'b'", "'a", "lambda: 1", "[x for x in y]", "True1",
        "1..", "-", r"'\U99999999'", "[" * 100 + "]" * 100, "9" * 5000,
    ],
)  # fmt: skip
def test_anything_else_is_no_literal(text: str) -> None:
    with pytest.raises(ValueError):
        to_json(text)


def test_brackets_that_do_not_match_and_depth_fail_early() -> None:
    assert scan("[1)", 1)[0].failed
    assert scan("{'a': [}", 1)[0].failed
    assert scan("[" * 100, 1)[0].failed
