from __future__ import annotations

import math

import numpy as np
import pytest

from llm_inference.tools.bench.arrivals import arrival_times


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 9.0])
def test_intervals_have_the_mean_and_the_variation_of_their_shape(burstiness: float) -> None:
    count, rate = 20_000, 5.0
    intervals = np.diff([0.0, *arrival_times(rate, 0, burstiness=burstiness, count=count)])
    assert len(intervals) == count
    # A gamma of shape k and mean m has the standard deviation m / sqrt(k).
    std = 1 / rate / math.sqrt(burstiness)
    assert abs(intervals.mean() - 1 / rate) < 5 * std / math.sqrt(count)
    assert abs(intervals.std() / std - 1) < 0.08


def test_a_poisson_process_counts_as_one() -> None:
    times = np.array(arrival_times(50.0, 1, duration_s=400.0))
    per_second = np.histogram(times, bins=400, range=(0, 400))[0]
    # Counts per second of a Poisson process: the variance is the mean, 50.
    assert abs(per_second.mean() - 50) < 5 * math.sqrt(50 / 400)
    assert abs(per_second.var() / 50 - 1) < 5 * math.sqrt(2 / 400)


def test_whichever_bound_comes_first_ends_it() -> None:
    times = arrival_times(10.0, 0, count=5000)
    assert times == sorted(times)
    assert arrival_times(10.0, 0, count=7) == times[:7]
    assert arrival_times(10.0, 0, duration_s=50.0) == [time for time in times if time < 50.0]
    assert arrival_times(10.0, 0, count=3, duration_s=50.0) == times[:3]
    assert arrival_times(0.001, 0, duration_s=0.01) == []


def test_a_seed_decides() -> None:
    assert arrival_times(1.0, 3, count=5) == arrival_times(1.0, 3, count=5)
    assert arrival_times(1.0, 3, count=5) != arrival_times(1.0, 4, count=5)


def test_a_schedule_needs_an_end() -> None:
    with pytest.raises(ValueError, match="count or duration_s"):
        arrival_times(1.0, 0)
