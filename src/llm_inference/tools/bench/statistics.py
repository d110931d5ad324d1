"""Numbers about numbers: a summary of many values, and what a set of timelines comes to. No input or output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from llm_inference.tools.bench.slo import Slo
from llm_inference.tools.bench.timeline import Timeline


class Summary(msgspec.Struct, frozen=True):
    """Of `count` values, in their own unit. Percentiles interpolate linearly between the two nearest ranks: the p-th
    is at position (count - 1) · p / 100 of the sorted values.
    """

    count: int
    mean: float
    std: float
    min: float
    p50: float
    p90: float
    p99: float
    max: float


class FailureCount(msgspec.Struct, frozen=True):
    count: int
    example: str


class Goodput(msgspec.Struct, frozen=True):
    """Requests within every bound, latencies counted from the time they were due; failed ones are never good."""

    slo: str
    num_good: int
    share: float  # of all requests, failed ones included
    requests_per_s: float


def summary(values: Iterable[float]) -> Summary | None:
    """None for no values."""
    array = np.asarray(list(values), dtype=np.float64)
    if not array.size:
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(array, (50, 90, 99), method="linear"))
    low, high = float(array.min()), float(array.max())
    # Rounding may put the mean of equal values a hair outside of them.
    mean = min(max(float(array.mean()), low), high)
    return Summary(int(array.size), mean, float(array.std()), low, p50, p90, p99, high)


def latencies(timelines: Sequence[Timeline], *, scheduled: bool) -> dict[str, Summary]:
    """Summaries in seconds, by name, of the requests that succeeded; `scheduled`: also from the time they were due."""
    done = [timeline for timeline in timelines if timeline.ok]
    values: dict[str, Iterable[float | None]] = {"ttft_s": (one.ttft_s for one in done)}
    if scheduled:
        values["ttft_scheduled_s"] = (one.ttft_scheduled_s for one in done)
    values["itl_s"] = (value for one in done for value in one.inter_token_s())
    values["gap_s"] = (value for one in done for value in one.gaps_s())
    values["tpot_s"] = (one.tpot_s for one in done)
    values["e2el_s"] = (one.e2el_s for one in done)
    if scheduled:
        values["e2el_scheduled_s"] = (one.e2el_scheduled_s for one in done)
        values["queue_s"] = (one.queue_s for one in done)
    summaries = {name: summary(value for value in many if value is not None) for name, many in values.items()}
    return {name: one for name, one in summaries.items() if one is not None}


def goodput(timelines: Sequence[Timeline], slo: Slo, duration_s: float) -> Goodput:
    good = sum(
        one.ok and slo.met_by({"ttft": one.ttft_scheduled_s, "tpot": one.tpot_s, "e2el": one.e2el_scheduled_s})
        for one in timelines
    )
    return Goodput(str(slo), good, good / len(timelines) if timelines else 0.0, per_second(good, duration_s))


def failure_counts(timelines: Iterable[Timeline]) -> dict[str, FailureCount]:
    """By kind, the most frequent first, each with what the first of them said."""
    counts: dict[str, FailureCount] = {}
    for timeline in timelines:
        if timeline.failure is not None:
            known = counts.get(timeline.failure.kind, FailureCount(0, timeline.failure.detail))
            counts[timeline.failure.kind] = FailureCount(known.count + 1, known.example)
    return dict(sorted(counts.items(), key=lambda item: -item[1].count))


def peak_in_flight(timelines: Iterable[Timeline]) -> int:
    """The most requests that were under way at once."""
    events = [event for one in timelines for event in ((one.sent_s, 1), (one.ended_s, -1))]
    peak = running = 0
    for _, change in sorted(events):  # at equal times an end comes before a beginning
        running += change
        peak = max(peak, running)
    return peak


def per_second(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0


def ecdf(values: Iterable[float]) -> tuple[list[float], list[float]]:
    """The empirical distribution function: sorted values, and the share of values up to and including each."""
    ordered = sorted(values)
    return ordered, [(place + 1) / len(ordered) for place in range(len(ordered))]


def tokens_over_time(
    timelines: Iterable[Timeline], duration_s: float, *, num_bins: int = 60
) -> tuple[list[float], list[float]]:
    """Output tokens per second in equal bins from 0 to `duration_s`: the bins' middles, the rates. All tokens count
    that came, also those of requests that failed later.
    """
    arrivals = [arrival for one in timelines for arrival in one.arrivals]
    counts, edges = np.histogram(
        [arrival.time_s for arrival in arrivals],
        bins=num_bins,
        range=(0.0, max(duration_s, 1e-9)),
        weights=[arrival.num_tokens for arrival in arrivals],
    )
    widths = np.diff(edges)
    return (edges[:-1] + widths / 2).tolist(), (counts / widths).tolist()
