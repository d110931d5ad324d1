from __future__ import annotations

from llm_inference.engine.base import EngineStats
from llm_inference.native.batch import Batch
from llm_inference.native.step_sizes import StepCounter
from llm_inference.telemetry.metrics.buckets import STEP_SEQUENCES, STEP_TOKENS


class Steps(Batch):
    """A batch of a given size."""

    def __init__(self, num_tokens: int, num_sequences: int) -> None:
        super().__init__(scheduled=[None] * num_sequences)  # type: ignore[list-item]
        self.size = num_tokens

    @property
    def num_tokens(self) -> int:
        return self.size


def test_each_step_is_counted_once_under_its_bound() -> None:
    counter = StepCounter()
    for num_tokens, num_sequences in ((1, 1), (8, 8), (9, 8), (100_000, 1000)):
        counter.saw(Steps(num_tokens, num_sequences))
    stats = counter.added_to(EngineStats(num_running=3))
    assert stats.num_running == 3
    assert stats.step_tokens is not None
    assert stats.step_sequences is not None
    tokens = dict(zip((*STEP_TOKENS, None), stats.step_tokens.counts, strict=True))
    assert {bound: count for bound, count in tokens.items() if count} == {1: 1, 8: 1, 16: 1, None: 1}
    assert stats.step_tokens.total == 100_018
    sequences = dict(zip((*STEP_SEQUENCES, None), stats.step_sequences.counts, strict=True))
    assert {bound: count for bound, count in sequences.items() if count} == {1: 1, 8: 2, None: 1}
