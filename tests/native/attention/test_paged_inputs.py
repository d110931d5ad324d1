"""Flat arrays for paged kernels."""

from __future__ import annotations

import torch

from llm_inference.native.attention.paged_inputs import block_table, offsets, pad_decodes, padded, positions
from tests.native.attention.steps import paged_step


def test_offsets_and_tables() -> None:
    assert offsets([1, 1, 5]).tolist() == [0, 1, 2, 7]
    assert offsets([]).tolist() == [0]
    assert block_table([[4], [7, 8, 9]]).tolist() == [[4, 0, 0], [7, 8, 9]]
    assert block_table([[4]], width=3).tolist() == [[4, 0, 0]]
    assert block_table([]).shape == (0, 0)
    assert {offsets([1]).dtype, block_table([[1]]).dtype} == {torch.int32}
    assert padded([5, 6], 4).tolist() == [5, 6, 0, 0]
    assert padded([], 0).dtype == torch.int64


def test_padded_decodes() -> None:
    step = paged_step([(1, 5), (1, 9)], num_blocks=6, block_size=4)
    full = pad_decodes(step, 4, scratch_block=6, block_size=4)
    assert full.slot_mapping == [*step.slot_mapping, 24, 24]
    assert full.context_lens == [5, 9, 1, 1]
    assert full.block_tables == [*step.block_tables, [6], [6]]
    assert positions(full, 4).tolist() == [4, 8, 0, 0]
    assert (full.num_decodes, full.query_lens) == (4, [1] * 4)
    assert len(step.query_lens) == 2, "the step itself is not changed"
