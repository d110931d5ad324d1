from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.bench.timelines import failed, timeline


def test_latencies_of_a_known_stream() -> None:
    one = timeline((2.5, 1), (3.0, 1), (4.0, 2), sent_s=2.0, scheduled_s=1.75, ended_s=4.25)
    assert one.ttft_s == 0.5
    assert one.ttft_scheduled_s == 0.75
    assert one.queue_s == 0.25
    assert one.e2el_s == 2.25
    assert one.e2el_scheduled_s == 2.5
    assert one.tpot_s == 0.5  # (4.0 - 2.5) / 3
    assert one.inter_token_s() == [0.5, 0.5, 0.5]
    assert one.gaps_s() == [0.5, 1.0]


def test_tokens_that_come_with_the_first_waited_for_nothing() -> None:
    one = timeline((1.0, 3), (2.0, 1))
    assert one.inter_token_s() == [0.0, 0.0, 1.0]
    assert one.gaps_s() == [1.0]
    assert one.ttft_s == 1.0


def test_one_token_has_no_time_per_further_token() -> None:
    one = timeline((1.0, 1), ended_s=1.5)
    assert (one.ttft_s, one.tpot_s, one.inter_token_s(), one.gaps_s()) == (1.0, None, [], [])


def test_no_token_has_no_first_one() -> None:
    one = failed("connection", sent_s=1.0, ended_s=3.0)
    assert (one.ttft_s, one.ttft_scheduled_s, one.tpot_s, one.inter_token_s()) == (None, None, None, [])
    assert (one.ok, one.e2el_s) == (False, 2.0)


def test_the_servers_count_decides_the_time_per_token() -> None:
    # Three chunks, but the server says that they were eleven tokens.
    one = timeline((1.0, 1), (2.0, 1), (3.0, 1), counting="chunks", output_tokens=11)
    assert one.tpot_s == 0.2
    assert one.inter_token_s() == [1.0, 1.0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.001, 10), st.integers(1, 50)), min_size=1, max_size=30),
    st.floats(0, 100),
)
def test_inter_token_latencies_add_up(steps: list[tuple[float, int]], sent_s: float) -> None:
    arrivals, now = [], sent_s
    for step, count in steps:
        now += step
        arrivals.append((now, count))
    one = timeline(*arrivals, sent_s=sent_s)
    latencies = one.inter_token_s()
    assert len(latencies) == one.output_tokens - 1
    assert sum(latencies) == pytest.approx(arrivals[-1][0] - arrivals[0][0])
    assert sum(one.gaps_s()) == pytest.approx(sum(latencies))
    if latencies:
        assert one.tpot_s == pytest.approx(sum(latencies) / len(latencies))
    assert one.ttft_s is not None
    assert one.ttft_s + sum(latencies) == pytest.approx(one.e2el_s)
