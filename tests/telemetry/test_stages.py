from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from llm_inference.telemetry.stages import StageSums, quiet


def test_seconds_and_entries_are_summed_by_name() -> None:
    clock = itertools.count(step=0.5)
    sums = StageSums(now=lambda: float(next(clock)))
    for name in ("a", "b", "a"):
        with sums(name):
            pass
    assert sums.seconds == {"a": 1.0, "b": 0.5}
    assert sums.counts == {"a": 2, "b": 1}


def test_a_stage_that_fails_counts_too() -> None:
    sums = StageSums()
    with pytest.raises(ValueError, match="no"), sums("a"):
        raise ValueError("no")
    assert sums.counts == {"a": 1}


def test_from_many_threads() -> None:
    sums = StageSums()

    def work(_: int) -> None:
        with sums("a"):
            pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(400)))
    assert sums.counts == {"a": 400}


def test_nobody_listens() -> None:
    with quiet("a"), quiet("a"):
        pass
