from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import pytest
import torch

from llm_inference.errors import EngineError
from llm_inference.native.batch import Batch, ScheduledSequence
from llm_inference.native.pooling import Pooler, finish, pool
from llm_inference.native.request import PoolingParams, Sequence
from tests.native.cores import make_request


def sequence(num_tokens: int, mode: str, request_id: str = "r") -> Sequence:
    request = make_request(request_id, range(3, 3 + num_tokens), max_tokens=0)
    params = PoolingParams(mode=mode, normalize=False)  # type: ignore[arg-type]
    return Sequence(msgspec.structs.replace(request, pooling=params), 0, list(range(num_tokens)), 0.0, num_tokens)


def take(pooler: Pooler, item: ScheduledSequence, hidden: torch.Tensor) -> dict[str, list[float]]:
    """One chunk, with the rows that the runner would give for it."""
    rows = [item.start + row for row in item.pooled_rows]
    done = pooler.take(Batch([item]), hidden[rows])
    assert not any(isinstance(vector, EngineError) for vector in done.values())
    return {key: np.frombuffer(vector, "<f4").tolist() for key, vector in done.items()}  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["mean", "last", "cls"])
@pytest.mark.parametrize("cuts", [[], [4], [1, 2, 9], [3, 9]])
def test_chunks_equal_the_whole(mode: str, cuts: list[int]) -> None:
    hidden = torch.randn(10, 6)
    expected = {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}[mode]
    pooler, one = Pooler(), sequence(10, mode)
    edges = [0, *cuts, 10]
    for start, end in itertools.pairwise(edges):
        done = take(pooler, ScheduledSequence(one, start, end - start), hidden)
        assert (end == 10) == bool(done)
    assert done["r"] == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_request_that_begins_anew_forgets_what_it_had() -> None:
    hidden, pooler, one = torch.randn(8, 4), Pooler(), sequence(8, "mean")
    take(pooler, ScheduledSequence(one, 0, 5), hidden * 100)  # then it is preempted
    take(pooler, ScheduledSequence(one, 0, 3), hidden)
    done = take(pooler, ScheduledSequence(one, 3, 5), hidden)
    assert done["r"] == pytest.approx(hidden.mean(0).tolist(), abs=1e-6)


def test_a_forgotten_request_leaves_nothing_behind() -> None:
    hidden, pooler = torch.ones(4, 2), Pooler()
    take(pooler, ScheduledSequence(sequence(4, "mean"), 0, 2), hidden)
    pooler.forget("r")
    pooler.forget("unknown")
    assert pooler._sums == {}


def test_requests_of_one_step_are_kept_apart() -> None:
    hidden = torch.randn(7, 3)
    other = ScheduledSequence(sequence(3, "mean", "b"), 0, 3)
    plain = ScheduledSequence(Sequence(make_request("chat", [1, 2]), 0, [1, 2], 0.0, 2), 0, 2)
    batch = Batch([ScheduledSequence(sequence(4, "cls", "a"), 0, 4), plain, other])
    done = Pooler().take(batch, torch.cat([hidden[:1], hidden[4:7]]))
    assert set(done) == {"a", "b"}
    assert np.frombuffer(done["b"], "<f4").tolist() == pytest.approx(hidden[4:7].mean(0).tolist(), abs=1e-6)  # type: ignore[arg-type]


def vector(params: PoolingParams, values: list[float]) -> list[float]:
    done = finish(torch.tensor(values), params, "r")
    assert isinstance(done, bytes)
    return np.frombuffer(done, "<f4").tolist()


def test_cut_then_normalized() -> None:
    values = [3.0, 4.0, 12.0]
    assert vector(PoolingParams(mode="mean"), values) == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    assert vector(PoolingParams(mode="mean", dimensions=2), values) == pytest.approx([0.6, 0.8])
    assert vector(PoolingParams(mode="mean", dimensions=2, normalize=False), values) == [3.0, 4.0]
    assert vector(PoolingParams(mode="mean"), [0.0, 0.0]) == [0.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_an_error_and_no_vector(bad: float) -> None:
    done = pool(torch.tensor([[1.0, bad]]), PoolingParams(mode="mean"), "r")
    assert isinstance(done, EngineError)
    assert "precision: float32" in done.message
