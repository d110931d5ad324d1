"""Steps of common sizes before the first request: a runner makes some of its kernels when it meets a size.

What they write into the cache belongs to no sequence, and is overwritten by the first that owns the blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from llm_inference.native.batch import ModelInput
from llm_inference.native.runner.base import Runner

BUDGET_S: Final = 1.0
#: A chunk of a prompt takes about as long as so many decodes of one sequence.
_CHUNK_IN_DECODES: Final = 16
_CHUNK: Final = 256
_DECODES: Final = 8


def warm_up(
    runner: Runner,
    *,
    block_size: int,
    num_blocks: int,
    max_tokens: int,
    budget_s: float = BUDGET_S,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """One sequence decoding, several, and several beside a chunk; of `max_tokens` at most, as long as time is left.

    The first step is always made; with a large model it is the only one.
    """
    begun = now()
    runner.execute(_step(1, 0, block_size))
    again = now()
    runner.execute(_step(1, 0, block_size))
    decode_s = now() - again
    chunk = min(_CHUNK, max_tokens - _DECODES, (num_blocks - 1) * block_size)
    for num_decodes, tokens, cost in ((_DECODES, 0, 2), (_DECODES, chunk, _CHUNK_IN_DECODES)):
        if num_decodes + tokens > max_tokens or tokens < 0 or now() - begun + cost * decode_s > budget_s:
            return
        runner.execute(_step(num_decodes, tokens, block_size))


def _step(num_decodes: int, chunk: int, block_size: int) -> ModelInput:
    """Decodes in block 0, all of them in its first slot, and a chunk in the blocks behind it."""
    num_chunks = int(chunk > 0)
    table = list(range(1, 1 - (-chunk // block_size)))
    return ModelInput(
        token_ids=[0] * (num_decodes + chunk),
        positions=[0] * num_decodes + list(range(chunk)),
        slot_mapping=[0] * num_decodes + list(range(block_size, block_size + chunk)),
        query_lens=[1] * num_decodes + [chunk] * num_chunks,
        context_lens=[1] * num_decodes + [chunk] * num_chunks,
        block_tables=[[0]] * num_decodes + [table] * num_chunks,
        logits_indices=[*range(num_decodes), *[num_decodes + chunk - 1] * num_chunks],
        block_copies=[],
        num_decodes=num_decodes,
    )
