"""The figures of one process as plain values, to be sent to another process and added up there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

Labels = tuple[str, ...]


class Bars(msgspec.Struct):
    """A histogram: how many values fell up to each bound (each counted once), the rest last, and their sum."""

    counts: list[int]
    total: float = 0.0

    def add(self, other: Bars) -> None:
        if len(self.counts) == len(other.counts):
            self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
            self.total += other.total


class EngineReport(msgspec.Struct):
    """What a process knows of an engine, by the metric's name. `shared`: every process sees the same engine-wide
    figures, so that one of them is the truth; otherwise each counts its own requests, and the sum is."""

    shared: bool
    values: dict[str, float]
    bars: dict[str, Bars]


class Snapshot(msgspec.Struct):
    """By metric, then by label values. `processes`: by name of the process, then by metric."""

    counters: dict[str, list[tuple[Labels, float]]] = msgspec.field(default_factory=dict)
    histograms: dict[str, list[tuple[Labels, Bars]]] = msgspec.field(default_factory=dict)
    gauges: dict[str, list[tuple[Labels, float]]] = msgspec.field(default_factory=dict)
    engines: dict[str, EngineReport] = msgspec.field(default_factory=dict)
    processes: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)

    def lasting(self) -> Snapshot:
        """What still counts after the process has ended: its counters would fall otherwise, and rates would jump."""
        return Snapshot(counters=self.counters, histograms=self.histograms)


#: The only metric that one process alone may know of a shared engine: whoever started it counts its restarts.
_OWNERS = "engine_restarts_total"


def merged(snapshots: Iterable[Snapshot]) -> Snapshot:
    """The sum; of shared engines the first report counts. The arguments stay as they are."""
    counters: dict[str, dict[Labels, float]] = {}
    gauges: dict[str, dict[Labels, float]] = {}
    histograms: dict[str, dict[Labels, Bars]] = {}
    result = Snapshot()
    for snapshot in snapshots:
        for ours, theirs in ((counters, snapshot.counters), (gauges, snapshot.gauges)):
            for name, samples in theirs.items():
                sums = ours.setdefault(name, {})
                for labels, value in samples:
                    sums[labels] = sums.get(labels, 0.0) + value
        for name, series in snapshot.histograms.items():
            bars_of = histograms.setdefault(name, {})
            for labels, bars in series:
                _add_bars(bars_of, labels, bars)
        for model, report in snapshot.engines.items():
            _add_engine(result.engines, model, report)
        result.processes |= snapshot.processes
    result.counters = {name: list(sums.items()) for name, sums in counters.items()}
    result.gauges = {name: list(sums.items()) for name, sums in gauges.items()}
    result.histograms = {name: list(bars_of.items()) for name, bars_of in histograms.items()}
    return result


def _add_bars(bars_of: dict[Any, Bars], key: Any, bars: Bars) -> None:
    known = bars_of.get(key)
    if known is None:
        bars_of[key] = Bars(list(bars.counts), bars.total)
    else:
        known.add(bars)


def _add_engine(engines: dict[str, EngineReport], model: str, report: EngineReport) -> None:
    known = engines.get(model)
    if known is None:
        bars = {name: Bars(list(one.counts), one.total) for name, one in report.bars.items()}
        engines[model] = EngineReport(report.shared, dict(report.values), bars)
    elif known.shared:
        if _OWNERS in report.values:
            known.values[_OWNERS] = max(known.values.get(_OWNERS, 0.0), report.values[_OWNERS])
    elif report.shared:  # the engine's own figures, in place of what processes have counted
        engines[model] = EngineReport(
            True, dict(report.values), {name: Bars(list(one.counts), one.total) for name, one in report.bars.items()}
        )
    else:
        for name, value in report.values.items():
            known.values[name] = known.values.get(name, 0.0) + value
        for name, bars_there in report.bars.items():
            _add_bars(known.bars, name, bars_there)
