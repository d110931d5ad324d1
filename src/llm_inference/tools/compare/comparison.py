"""The result of a comparison as a plain value: everything that was measured, round by round, and what follows from it.

Neither prints nor writes itself. Figures of a cell are medians over rounds, with the least and the most beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from llm_inference.tools.compare.contender import Contender
from llm_inference.tools.compare.machine import Machine, Peaks
from llm_inference.tools.compare.measured import Measured

#: Who computes more precisely and is faster all the same is the one to beat.
_RANK = {"int4": 0, "int8": 1, "bf16": 2, "fp32": 3}


class Spread(msgspec.Struct, frozen=True):
    """Of one figure over rounds."""

    median: float
    least: float
    most: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one round. `roofline` and `measured` are by workload; `errors` what became of the others."""

    round: int
    startup_s: float | None = None
    peak_rss_bytes: int | None = None
    measured: dict[str, Measured] = {}
    roofline: dict[str, float] = {}
    errors: dict[str, str] = {}
    error: str | None = None  # it did not start


class Entry(msgspec.Struct, kw_only=True):
    """One contender, with its runs as they come."""

    name: str
    title: str
    precision: str
    through: str
    is_ours: bool
    engine: str | None
    settings: dict[str, Any] = {}
    versions: dict[str, str] = {}
    notes: list[str] = []
    runs: list[Run] = []

    @classmethod
    def of(cls, contender: Contender) -> Entry:
        model = contender.model
        return cls(
            name=contender.name,
            title=contender.title,
            precision=contender.precision,
            through=contender.through,
            is_ours=contender.is_ours,
            engine=None if model is None else model.engine,
            settings={} if model is None else model.model_dump(mode="json", exclude_unset=True, exclude={"api_key"}),
        )

    @property
    def error(self) -> str | None:
        """Why there is nothing to show: it never started."""
        errors = [run.error for run in self.runs if run.error is not None]
        return errors[0] if errors and len(errors) == len(self.runs) else None

    def cells(self, workload: str) -> list[Measured]:
        return [run.measured[workload] for run in self.runs if workload in run.measured]

    def spread(self, workload: str, figure: Callable[[Measured], float | None]) -> Spread | None:
        return spread(figure(one) for one in self.cells(workload))

    def main(self, workload: str) -> Spread | None:
        """The figure that a workload is about; see `main_figure`."""
        return self.spread(workload, main_figure(workload))

    def roofline(self, workload: str) -> Spread | None:
        return spread(run.roofline.get(workload) for run in self.runs)

    @property
    def peak_rss_bytes(self) -> int | None:
        peaks = [run.peak_rss_bytes for run in self.runs if run.peak_rss_bytes]
        return max(peaks) if peaks else None

    @property
    def startup_s(self) -> Spread | None:
        return spread(run.startup_s for run in self.runs)


class Comparison(msgspec.Struct, kw_only=True):
    """`interrupted`: whoever ran it ended it early, and what was measured by then is here."""

    started_at: str  # UTC, ISO 8601
    version: str
    machine: Machine
    model: str
    rounds: int
    limit_s: float
    workloads: dict[str, str]  # name → what it is
    peaks: Peaks | None = None
    entries: list[Entry] = []
    notes: list[str] = []
    interrupted: bool = False

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @property
    def ok(self) -> bool:
        """Whether everything was measured in full."""
        runs = [run for entry in self.entries for run in entry.runs]
        complete = all(one.complete or one.num_cut for run in runs for one in run.measured.values())
        return bool(runs) and complete and not any(run.error or run.errors for run in runs) and not self.interrupted

    def ratio_to_first(self, entry: Entry, workload: str) -> float | None:
        return _ratio(entry.main(workload), self.entries[0].main(workload))

    def best_peer(self, precision: str, workload: str) -> Entry | None:
        """The best of others' engines in this class of precision, or in a higher one."""
        least = _RANK.get(precision)
        peers = [
            entry
            for entry in self.entries
            if not entry.is_ours
            and entry.main(workload) is not None
            and (entry.precision == precision or (least is not None and _RANK.get(entry.precision, -1) > least))
        ]
        best = max if higher_is_better(workload) else min
        return best(peers, key=lambda entry: _median(entry.main(workload))) if peers else None

    def ratio_to_best_peer(self, entry: Entry, workload: str) -> float | None:
        peer = self.best_peer(entry.precision, workload)
        return None if peer is None or peer is entry else _ratio(entry.main(workload), peer.main(workload))


def main_figure(workload: str) -> Callable[[Measured], float | None]:
    """W1: tokens a second of a stream after its first; W4: the streams' 99th percentile gap; else output tokens/s."""
    if workload == "W1":
        return lambda one: one.decode_tokens_per_s
    if workload == "W4":
        return lambda one: one.itl_p99_s
    return lambda one: one.output_tokens_per_s


def higher_is_better(workload: str) -> bool:
    return workload != "W4"


def spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def _median(value: Spread | None) -> float:
    assert value is not None
    return value.median


def _ratio(value: Spread | None, other: Spread | None) -> float | None:
    return None if value is None or other is None or not other.median else value.median / other.median
