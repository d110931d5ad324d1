"""Groups of decodes: complete, and never worse than one group or one group each."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from llm_inference.native.attention.buckets import bucket_by_length


def cost(groups: list[list[int]], lengths: list[int], call_cost: int) -> int:
    return sum(len(group) * max(lengths[index] for index in group) + call_cost for group in groups)


def test_like_lengths_stay_together() -> None:
    assert bucket_by_length([]) == []
    assert bucket_by_length([5]) == [[0]]
    assert bucket_by_length([5, 6, 5]) == [[0, 1, 2]]


def test_one_long_sequence_does_not_pad_the_others() -> None:
    assert bucket_by_length([4, 500, 4, 3], call_cost=20) == [[0, 2, 3], [1]]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(0, 50))
def test_cheapest_split_of_the_sorted_order(lengths: list[int], call_cost: int) -> None:
    groups = bucket_by_length(lengths, call_cost)
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best = min(
        cost([order[a:b] for a, b in itertools.pairwise((0, *cuts, len(order)))], lengths, call_cost)
        for count in range(len(order))
        for cuts in itertools.combinations(range(1, len(order)), count)
    )
    # Groups that are cheap to keep together are not split for a gain below one call.
    assert cost(groups, lengths, call_cost) <= best + call_cost
