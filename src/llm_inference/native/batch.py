"""One step's work: which tokens of which sequences, and the flat arrays that a runner needs. No tensors.

scheduled:   A (decode, 1 token)   B (prefill chunk, 3 tokens)   C (decode, 1 token)
token_ids:   [a7]                  [b0 b1 b2]                     [c4]
query_lens:  [1,                    3,                             1]
context_lens:[8,                    3,                             5]     tokens visible to the last query token
logits_indices: rows whose next-token logits are wanted (0 and 4 here; all of B's if prompt logprobs are asked,
              and one more for each token that is drafted)
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from llm_inference.native.request import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """`num_known_tokens` tokens of `sequence`, from position `start` (its `num_computed_tokens` when scheduled).

    After them, where it decodes, tokens that are only guessed: `drafted`.
    """

    sequence: Sequence
    start: int
    num_known_tokens: int
    #: Sequences that sample from this one's last logits row: itself, and choices forked from it in this step.
    #: Empty while the prompt is not yet wholly computed. With a draft: itself, from a row for each drafted token more.
    samplers: list[Sequence] = field(default_factory=list)
    drafted: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num_known_tokens + len(self.drafted)

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def known_end(self) -> int:
        return self.start + self.num_known_tokens

    @property
    def pooled_rows(self) -> Rows[int]:
        """Which of its tokens' hidden states pooling needs, counted from `start`."""
        pooling = self.sequence.request.pooling
        if pooling is None:
            return ()
        if pooling.mode == "mean":
            return range(self.num_tokens)
        if pooling.mode == "cls":
            return (0,) if self.start == 0 else ()
        return (self.num_tokens - 1,) if self.end == len(self.sequence.token_ids) else ()


@dataclass(slots=True)
class Batch:
    """What the scheduler hands out and takes back in `update`."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    #: (source, destination) physical blocks to copy before the step: copy-on-write of shared blocks.
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    scheduled_s: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.scheduled)

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)


@dataclass(slots=True)
class ModelInput:
    """Flat arrays for a runner; all plain ints. Decodes come first, so that a runner may split by `num_decodes`.

    token_ids, positions, slot_mapping: one entry per scheduled token. A slot is `block * block_size + offset`.
    query_lens, context_lens, block_tables: one entry per sequence.
    logits_indices: indices into the flat tokens for which logits are wanted, ascending.
    hidden_indices: the same for hidden states (embeddings).
    """

    token_ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]
    logits_indices: list[int]
    block_copies: list[tuple[int, int]]
    num_decodes: int
    hidden_indices: list[int] = field(default_factory=list)

    @classmethod
    def build(cls, batch: Batch, block_size: int) -> ModelInput:
        """Flatten `batch`. Expects `batch.scheduled` to hold one-token items first (the scheduler orders them so)."""
        self = cls([], [], [], [], [], [], [], batch.block_copies, 0)
        for item in batch.scheduled:
            sequence, start, end = item.sequence, item.start, item.end
            base = len(self.token_ids)
            self.token_ids.extend(sequence.token_ids[start : item.known_end])
            self.token_ids.extend(item.drafted)
            self.positions.extend(range(start, end))
            table = sequence.block_table
            self.slot_mapping.extend(
                table[position // block_size] * block_size + position % block_size for position in range(start, end)
            )
            self.query_lens.append(item.num_tokens)
            self.context_lens.append(end)
            self.block_tables.append(table[: -(-end // block_size)])
            if item.num_tokens == 1 and len(self.query_lens) == self.num_decodes + 1:
                self.num_decodes += 1
            self.hidden_indices.extend(base + row for row in item.pooled_rows)
            if item.sequence.request.sampling.prompt_logprobs is not None and start < sequence.num_prompt_tokens:
                self.logits_indices.extend(range(base, base + item.num_tokens))
            elif item.samplers:
                self.logits_indices.extend(range(base + item.num_known_tokens - 1, base + item.num_tokens))
        return self
