from __future__ import annotations

import statistics as reference
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_inference.tools.bench.slo import Slo
from llm_inference.tools.bench.statistics import (
    FailureCount,
    ecdf,
    failure_counts,
    goodput,
    latencies,
    peak_in_flight,
    per_second,
    summary,
    tokens_over_time,
)
from tests.tools.bench.timelines import failed, timeline


def test_percentiles_of_known_values() -> None:
    hundred = summary(float(value) for value in range(101))
    assert hundred is not None
    assert (hundred.count, hundred.mean, hundred.min, hundred.max) == (101, 50.0, 0.0, 100.0)
    assert (hundred.p50, hundred.p90, hundred.p99) == (50.0, 90.0, 99.0)
    # The variance of 0, …, n is n (n + 2) / 12.
    assert hundred.std == pytest.approx((100 * 102 / 12) ** 0.5)


def test_percentiles_between_two_values() -> None:
    two = summary([20.0, 10.0])
    assert two is not None
    assert (two.p50, two.p90, two.p99) == pytest.approx((15.0, 19.0, 19.9))
    one = summary([3.0])
    assert one is not None
    assert (one.mean, one.std, one.p50, one.p99) == (3.0, 0.0, 3.0, 3.0)
    assert summary([]) is None


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=200))
def test_percentiles_equal_the_standard_librarys(values: list[float]) -> None:
    cuts = reference.quantiles(values, n=100, method="inclusive")
    one = summary(values)
    assert one is not None
    assert (one.p50, one.p90, one.p99) == pytest.approx((cuts[49], cuts[89], cuts[98]))
    assert one.mean == pytest.approx(reference.fmean(values))
    assert one.min <= one.p50 <= one.p90 <= one.p99 <= one.max
    assert one.min <= one.mean <= one.max


TWO = [
    timeline((1.0, 1), (2.0, 1), sent_s=0.5, scheduled_s=0.0),
    timeline((3.0, 1), (3.5, 1), sent_s=1.0, ended_s=4.0),
]


def test_latencies_from_sending_and_from_schedule() -> None:
    plain = latencies([*TWO, failed("timeout", sent_s=0.0, ended_s=99.0)], scheduled=False)
    assert set(plain) == {"ttft_s", "itl_s", "gap_s", "tpot_s", "e2el_s"}
    assert {name: one.mean for name, one in plain.items()} == {
        "ttft_s": 1.25,  # 0.5, 2.0
        "itl_s": 0.75,
        "gap_s": 0.75,
        "tpot_s": 0.75,
        "e2el_s": 2.25,  # 1.5, 3.0
    }
    from_schedule = latencies(TWO, scheduled=True)
    assert from_schedule["ttft_scheduled_s"].mean == 1.5
    assert from_schedule["e2el_scheduled_s"].mean == 2.5
    assert from_schedule["queue_s"].max == 0.5


def test_what_no_request_has_is_not_there() -> None:
    assert latencies([failed("timeout")], scheduled=True) == {}
    assert "tpot_s" not in latencies([timeline((1.0, 1))], scheduled=False)


def test_goodput_counts_from_schedule_and_never_a_failure() -> None:
    timelines = [*TWO, failed("http_503"), timeline((1.0, 1), sent_s=0.9, scheduled_s=0.0)]
    good = goodput(timelines, Slo.parse(["ttft:1000"]), 4.0)
    # 1.0 from schedule is within, 2.0 is not, the failure is not, 1.0 from schedule is.
    assert (good.num_good, good.share, good.requests_per_s) == (2, 0.5, 0.5)
    assert good.slo == "ttft:1000"
    assert goodput([], Slo.parse(["ttft:1"]), 0.0).share == 0.0


def test_failures_by_kind_the_most_frequent_first() -> None:
    timelines = [failed("timeout", "t"), *TWO, failed("http_503", "first"), failed("http_503", "second")]
    counts = failure_counts(timelines)
    assert list(counts.items()) == [("http_503", FailureCount(2, "first")), ("timeout", FailureCount(1, "t"))]


def test_peak_in_flight() -> None:
    def span(start: float, end: float) -> object:
        return timeline((end, 1), sent_s=start)

    assert peak_in_flight([]) == 0
    assert peak_in_flight([span(0, 1), span(1, 2), span(2, 3)]) == 1  # type: ignore[list-item]
    assert peak_in_flight([span(0, 3), span(1, 2), span(1.5, 4)]) == 3  # type: ignore[list-item]


def test_rates_of_nothing_are_nothing() -> None:
    assert (per_second(6, 3.0), per_second(6, 0.0)) == (2.0, 0.0)


def test_ecdf() -> None:
    assert ecdf([3.0, 1.0, 2.0, 2.0]) == ([1.0, 2.0, 2.0, 3.0], [0.25, 0.5, 0.75, 1.0])
    assert ecdf([]) == ([], [])


def test_throughput_over_time_holds_every_token() -> None:
    middles, rates = tokens_over_time([timeline((0.5, 3), (3.9, 1)), failed("truncated")], 4.0, num_bins=4)
    assert middles == [0.5, 1.5, 2.5, 3.5]
    assert rates == [3.0, 0.0, 0.0, 1.0]
    middles, rates = tokens_over_time(TWO, 10.0)
    assert sum(rates) * 10 / 60 == pytest.approx(4)
    assert all(after - before == pytest.approx(1 / 6) for before, after in pairwise(middles))
