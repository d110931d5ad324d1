"""A stand-in for scheduler and cache manager: sequences in scattered blocks, steps put together by hand."""

from __future__ import annotations

import itertools
import random

import torch

from llm_inference.native.batch import ModelInput
from llm_inference.native.models.base import CausalLM
from llm_inference.native.runner.base import Runner
from llm_inference.native.runner.torch_runner import TorchRunner


class PagedSequence:
    """Tokens and where they lie."""

    def __init__(self, token_ids: list[int], table: list[int]) -> None:
        self.token_ids = token_ids
        self.table = table


class Pager:
    """Owns a runner's blocks and hands them out in a random order."""

    def __init__(self, runner: Runner, *, block_size: int, num_blocks: int = 96, seed: int = 0) -> None:
        self.block_size = block_size
        self.runner = runner
        self.runner.allocate_kv_cache(num_blocks)
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)

    def add(self, token_ids: list[int], shared: list[int] | None = None) -> PagedSequence:
        """A sequence with blocks for all its tokens, of which the first may be those of another."""
        table = list(shared or [])
        while len(table) * self.block_size < len(token_ids):
            table.append(self.free.pop())
        return PagedSequence(token_ids, table)

    def step(
        self, work: list[tuple[PagedSequence, int, int]], copies: list[tuple[int, int]] | None = None
    ) -> list[torch.Tensor]:
        """Run tokens `start … end` of each sequence in one step; single tokens first. All their logits, per item."""
        order = sorted(range(len(work)), key=lambda index: work[index][2] - work[index][1] != 1)
        model_input = ModelInput([], [], [], [], [], [], [], copies or [], 0)
        for index in order:
            sequence, start, end = work[index]
            model_input.token_ids += sequence.token_ids[start:end]
            model_input.positions += range(start, end)
            model_input.slot_mapping += [
                sequence.table[position // self.block_size] * self.block_size + position % self.block_size
                for position in range(start, end)
            ]
            model_input.query_lens.append(end - start)
            model_input.context_lens.append(end)
            model_input.block_tables.append(sequence.table[: -(-end // self.block_size)])
            model_input.num_decodes += end - start == 1
        model_input.logits_indices = list(range(len(model_input.token_ids)))
        logits = self.runner.execute(model_input).clone()  # the next step may overwrite them
        results: list[torch.Tensor] = [torch.empty(0)] * len(work)
        row = 0
        for index in order:
            size = work[index][2] - work[index][1]
            results[index] = logits[row : row + size]
            row += size
        return results

    def run(self, token_ids: list[int], *cuts: int) -> torch.Tensor:
        """One sequence alone, cut into chunks; the logits of every token."""
        sequence = self.add(token_ids)
        edges = [0, *cuts, len(token_ids)]
        parts = [self.step([(sequence, a, b)])[0] for a, b in itertools.pairwise(edges)]
        return torch.cat(parts)


def torch_pager(model: CausalLM, *, block_size: int = 4, num_blocks: int = 96, seed: int = 0) -> Pager:
    """Over the reference runner, with small blocks."""
    runner = TorchRunner(model, block_size=block_size)
    return Pager(runner, block_size=block_size, num_blocks=num_blocks, seed=seed)


def random_tokens(count: int, seed: int, vocab_size: int = 101) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(vocab_size) for _ in range(count)]
