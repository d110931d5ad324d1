"""When requests are due: a schedule made before the first is sent, so that slow answers cannot thin it out."""

from __future__ import annotations

import numpy as np

_CHUNK = 1024


def arrival_times(
    rate: float, seed: int, *, burstiness: float = 1.0, count: int | None = None, duration_s: float | None = None
) -> list[float]:
    """Seconds after the start, ascending, at `rate` per second on average.

    Intervals are gamma-distributed with shape `burstiness` and mean 1 / rate; shape 1 is the exponential distribution,
    so that the arrivals are a Poisson process. The first is one interval after the start. At most `count`, all before
    `duration_s`; one of the two must be given.
    """
    if count is None and duration_s is None:
        raise ValueError("a schedule without an end: give count or duration_s")
    rng = np.random.default_rng((seed, 3))
    times: list[float] = []
    last = 0.0
    while True:
        intervals = rng.gamma(burstiness, 1 / (rate * burstiness), size=_CHUNK)
        for time_s in (last + np.cumsum(intervals)).tolist():
            if (count is not None and len(times) >= count) or (duration_s is not None and time_s >= duration_s):
                return times
            times.append(time_s)
        last = times[-1]
