"""Lookups against a search through the whole list."""

from __future__ import annotations

import random

import pytest

from llm_inference.native.ngram_index import NgramIndex


def searched(token_ids: list[int], num_tokens: int, min_ngram: int, max_ngram: int) -> tuple[int, ...]:
    """The same by definition: the longest match, the latest of equally long ones."""
    size = len(token_ids)
    for length in range(min(max_ngram, size - 1), min_ngram - 1, -1):
        tail = token_ids[size - length :]
        for end in range(size - 1, length - 1, -1):
            if token_ids[end - length : end] == tail:
                copy = list(token_ids)
                for place in range(num_tokens):
                    copy.append(copy[end + place])
                return tuple(copy[size:])
    return ()


@pytest.mark.parametrize(("min_ngram", "max_ngram"), [(1, 1), (1, 3), (2, 2), (2, 4), (3, 3)])
@pytest.mark.parametrize("vocab_size", [6, 12])
def test_it_finds_what_a_search_finds(min_ngram: int, max_ngram: int, vocab_size: int) -> None:
    """Few places match in so short lists that none is beyond those that are compared, but for the shortest n-grams."""
    rng = random.Random(min_ngram * 100 + max_ngram)
    num_found = 0
    for _ in range(30):
        index, token_ids = NgramIndex(min_ngram, max_ngram), []
        for _ in range(40):
            token_ids += rng.choices(range(vocab_size), k=rng.randint(1, 3))
            if max_ngram > min_ngram and token_ids.count(token_ids[-1]) > 9:
                break
            found = index.continuation(token_ids, 5)
            assert found == searched(token_ids, 5, min_ngram, max_ngram)
            num_found += bool(found)
    assert num_found > 20


def test_a_longer_match_goes_before_a_later_one() -> None:
    token_ids = [1, 2, 3, 4, 50, 60, 9, 3, 4, 70, 80, 1, 2, 3, 4]
    assert NgramIndex(2, 4).continuation(token_ids, 2) == (50, 60)
    assert NgramIndex(2, 2).continuation(token_ids, 2) == (70, 80)


def test_a_loop_goes_on_as_a_loop() -> None:
    assert NgramIndex(1, 4).continuation([7, 8, 9, 7, 8, 9], 7) == (7, 8, 9, 7, 8, 9, 7)
    assert NgramIndex(2, 4).continuation([5] * 50, 4) == (5, 5, 5, 5)


def test_nothing_new_under_a_first_occurrence() -> None:
    index = NgramIndex(2, 4)
    for token_ids in ([], [1], [1, 2], [1, 2, 3], [1, 2, 3, 2]):
        assert index.continuation(token_ids, 4) == ()
    assert index.continuation([1, 2, 3, 2, 3], 4) == (2, 3, 2, 3)


def test_asking_twice_changes_nothing() -> None:
    index, token_ids = NgramIndex(2, 3), [1, 2, 3, 4, 1, 2]
    assert index.continuation(token_ids, 2) == index.continuation(token_ids, 2) == (3, 4)
