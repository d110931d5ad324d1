"""How many tokens and sequences the steps had, counted for metrics."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from llm_inference.engine.base import EngineStats, StepSizes
from llm_inference.native.batch import Batch
from llm_inference.telemetry.metrics.buckets import STEP_SEQUENCES, STEP_TOKENS


class StepCounter:
    """Both histograms of one core."""

    def __init__(self) -> None:
        self._tokens = _Counts(STEP_TOKENS)
        self._sequences = _Counts(STEP_SEQUENCES)

    def saw(self, batch: Batch) -> None:
        self._tokens.add(batch.num_tokens)
        self._sequences.add(len(batch.scheduled))

    def added_to(self, stats: EngineStats) -> EngineStats:
        return msgspec.structs.replace(stats, step_tokens=self._tokens.sizes(), step_sequences=self._sequences.sizes())


class _Counts:
    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0

    def add(self, size: int) -> None:
        self._counts[bisect_left(self._bounds, size)] += 1
        self._total += size

    def sizes(self) -> StepSizes:
        return StepSizes(tuple(self._counts), self._total)
