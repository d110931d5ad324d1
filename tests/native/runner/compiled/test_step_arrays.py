"""The struct of a step holds the addresses of arrays with the step's numbers, however large it was before."""

from __future__ import annotations

import ctypes

import numpy as np

from llm_inference.native.batch import ModelInput
from llm_inference.native.runner.compiled.step_arrays import StepArrays


def step_of(lengths: list[int], logits: list[int], hidden: list[int]) -> ModelInput:
    return ModelInput(
        token_ids=list(range(sum(lengths))),
        positions=[10 + i for length in lengths for i in range(length)],
        slot_mapping=[0] * sum(lengths),
        query_lens=lengths,
        context_lens=[10 + length for length in lengths],
        block_tables=[[3 * index, 3 * index + 1] for index in range(len(lengths))],
        logits_indices=logits,
        block_copies=[],
        num_decodes=0,
        hidden_indices=hidden,
    )


def read(address: int, size: int) -> list[int]:
    return np.ctypeslib.as_array((ctypes.c_int32 * size).from_address(address)).tolist() if size else []


def test_steps_of_growing_and_shrinking_sizes() -> None:
    arrays = StepArrays(vocab_size=11, hidden_size=4)
    for lengths, logits, hidden in (
        ([1, 2], [0, 2], []),
        ([300, 900, 1], [1200], [0, 5, 7]),
        ([1], [0], [0]),
        ([2], [], []),
    ):
        given = step_of(lengths, logits, hidden)
        out_logits, out_hidden = arrays.fill(given)
        step = arrays.step
        assert (step.num_tokens, step.num_sequences) == (sum(lengths), len(lengths))
        assert (step.num_rows, step.num_logits) == (len(logits) + len(hidden), len(logits))
        assert out_logits.shape == (len(logits), 11)
        assert out_hidden.shape == (len(hidden), 4)
        if logits:
            assert step.logits == out_logits.data_ptr()
        if hidden:
            assert step.hidden == out_hidden.data_ptr()
        assert read(step.token_ids, sum(lengths)) == given.token_ids
        assert read(step.positions, sum(lengths)) == given.positions
        assert read(step.rows, step.num_rows) == [*logits, *hidden]
        begins = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        assert read(step.query_begins, len(lengths) + 1) == begins
        assert read(step.block_begins, len(lengths) + 1) == [2 * i for i in range(len(lengths) + 1)]
        assert read(step.block_ids, 2 * len(lengths)) == [block for table in given.block_tables for block in table]
