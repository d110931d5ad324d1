"""A step's sequences as the flat arrays that paged kernels read. On the host, in the types that the kernels want.

query lengths    1 1 1 │ 5 3        decodes first, then chunks
offsets          0 1 2 3 │ 0 5 8
context lengths  9 4 7 │ 5 20
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from llm_inference.native.batch import ModelInput


def offsets(lengths: Sequence[int]) -> torch.Tensor:
    """`[len + 1]` int32: where each of them begins, and where the last one ends."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def block_table(tables: Sequence[Sequence[int]], width: int | None = None) -> torch.Tensor:
    """`[len, width]` int32, short ones padded with block 0, which is not read. `width` None: of the longest."""
    width = max(map(len, tables), default=0) if width is None else width
    flat: list[int] = []
    for table in tables:
        flat += table
        flat += [0] * (width - len(table))
    return torch.tensor(flat, dtype=torch.int32).view(len(tables), width)


def positions(model_input: ModelInput, num_rows: int) -> torch.Tensor:
    """`[num_rows]` int64, padded with zeros."""
    return padded(model_input.positions, num_rows)


def padded(values: Sequence[int], size: int, fill: int = 0) -> torch.Tensor:
    """`[size]` int64: `values`, then `fill`."""
    return torch.tensor([*values, *[fill] * (size - len(values))], dtype=torch.int64)


def pad_decodes(model_input: ModelInput, size: int, scratch_block: int, block_size: int) -> ModelInput:
    """A step that only decodes, with sequences of one token in the scratch block behind, up to `size`.

    All of them write token 0 into one slot, and read it.
    """
    num_more = size - len(model_input.query_lens)
    return ModelInput(
        token_ids=model_input.token_ids + [0] * num_more,
        positions=model_input.positions + [0] * num_more,
        slot_mapping=model_input.slot_mapping + [scratch_block * block_size] * num_more,
        query_lens=model_input.query_lens + [1] * num_more,
        context_lens=model_input.context_lens + [1] * num_more,
        block_tables=model_input.block_tables + [[scratch_block]] * num_more,
        logits_indices=model_input.logits_indices,
        block_copies=model_input.block_copies,
        num_decodes=size,
    )
