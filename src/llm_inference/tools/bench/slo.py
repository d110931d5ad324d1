"""A service level objective: bounds that a request must keep all at once to count as good.

Knows nothing of how the latencies were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llm_inference.errors import ConfigError

#: What can be bounded: time to first token, time per output token, end-to-end latency.
METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds in seconds, by metric; a bound that is met exactly is kept."""

    bounds_s: Mapping[str, float]

    @classmethod
    def parse(cls, terms: Iterable[str]) -> Slo:
        """Read `metric:milliseconds` terms such as `ttft:500`. Raises `ConfigError`."""
        bounds: dict[str, float] = {}
        for term in terms:
            metric, _, value = term.partition(":")
            try:
                milliseconds = float(value)
            except ValueError:
                milliseconds = math.nan
            if metric not in METRICS or not (milliseconds > 0 and math.isfinite(milliseconds)):
                raise ConfigError(
                    f"--slo: {term!r} is no bound; write METRIC:MILLISECONDS with a metric of {', '.join(METRICS)}, "
                    "such as ttft:500"
                )
            if metric in bounds:
                raise ConfigError(f"--slo: {metric} is bounded twice; leave one out")
            bounds[metric] = milliseconds / 1000
        return cls(bounds)

    def met_by(self, latencies_s: Mapping[str, float | None]) -> bool:
        """Whether every bound holds. A latency of None (one token has no time per further token) breaks none."""
        values = ((latencies_s[metric], bound) for metric, bound in self.bounds_s.items())
        return all(value is None or value <= bound for value, bound in values)

    def __str__(self) -> str:
        return " ".join(f"{metric}:{bound * 1000:g}" for metric, bound in self.bounds_s.items())
