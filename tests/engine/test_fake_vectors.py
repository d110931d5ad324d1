from __future__ import annotations

import struct

import pytest

from llm_inference.engine.fake_vectors import SIZE, vector_of


def numbers(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def test_the_tokens_alone_decide() -> None:
    whole = vector_of([1, 2], "mean", None, True)
    assert len(numbers(whole)) == SIZE
    assert whole == vector_of((1, 2), "mean", None, True)
    assert whole not in (vector_of([12], "mean", None, True), vector_of([1, 2], "last", None, True))
    assert sum(value * value for value in numbers(whole)) == pytest.approx(1.0)


def test_fewer_dimensions_are_a_beginning() -> None:
    raw = numbers(vector_of([1, 2], "mean", None, False))
    cut = numbers(vector_of([1, 2], "mean", 3, True))
    length = sum(value * value for value in raw[:3]) ** 0.5
    assert cut == pytest.approx([value / length for value in raw[:3]])
