"""Beam search: which continuations live on, and which finished ones are the best. No tensors, no blocks, no scheduler.

    candidates of every beam ─► the K best of all ─┬─ end, and among the first num_beams ─► finished (score / length^p)
                                                   └─ go on ─► the next num_beams beams

It decides as transformers' `generate(num_beams=…)` does, ties and float32 rounding included, so that the outputs are
equal: K = max(2, 1 + number of end tokens) × num_beams; a continuation that ends counts only among the first num_beams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

#: A continuation of a beam: (token id, log-probability of the token after that beam).
Candidate = tuple[int, float]


class Continuation(NamedTuple):
    """The next beam `parent` (an index into the beams of this step) grown by `token_id`."""

    parent: int
    token_id: int
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished output. `ended`: by an end token (its last one), not by the length."""

    token_ids: tuple[int, ...]
    score: float
    ended: bool


class BeamSearch:
    """The decisions of one request. `step` once per token until it returns no beams, then `finished` is the answer."""

    def __init__(
        self,
        *,
        num_beams: int,
        end_token_ids: Sequence[int],
        max_tokens: int,
        length_penalty: float,
        early_stopping: bool,
    ) -> None:
        self._num_beams = num_beams
        self._end_token_ids = frozenset(end_token_ids)
        self._max_tokens = max_tokens
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._can_improve = True
        #: The best so far, best first; at most num_beams.
        self.finished: list[Hypothesis] = []

    @property
    def num_candidates(self) -> int:
        """How many of each beam's best continuations `step` wants to see."""
        return max(2, 1 + len(self._end_token_ids)) * self._num_beams

    def step(
        self,
        beams: Sequence[tuple[Sequence[int], float]],
        candidates: Sequence[Sequence[Candidate]],
    ) -> list[Continuation]:
        """The beams to go on with, best first; empty when the search is over.

        `beams`: (output tokens so far, all equally many; score). `candidates[i]`: the best continuations of beam i.
        """
        num_output = len(beams[0][0]) + 1
        ranked = self._rank(beams, candidates)
        ends = [self._ends(token_id, num_output) for _, token_id, _ in ranked]
        self._collect(beams, ranked, ends, num_output)
        running = [continuation for continuation, end in zip(ranked, ends, strict=True) if not end][: self._num_beams]
        if not running:
            return []
        full = len(self.finished) == self._num_beams
        best_possible = np.float32(running[0].score) / np.float32(float(num_output) ** self._length_penalty)
        if full and not best_possible > np.float32(self.finished[-1].score):
            self._can_improve = False
        if not self._can_improve or (full and self._early_stopping):
            return []
        return running

    def _rank(
        self, beams: Sequence[tuple[Sequence[int], float]], candidates: Sequence[Sequence[Candidate]]
    ) -> list[Continuation]:
        every = [
            Continuation(parent, token_id, float(np.float32(logprob) + np.float32(score)))
            for parent, ((_, score), own) in enumerate(zip(beams, candidates, strict=True))
            for token_id, logprob in own
        ]
        every.sort(key=lambda c: (-c.score, c.parent, c.token_id))
        return every[: self.num_candidates]

    def _ends(self, token_id: int, num_output: int) -> bool:
        return token_id in self._end_token_ids or num_output >= self._max_tokens

    def _collect(
        self,
        beams: Sequence[tuple[Sequence[int], float]],
        ranked: Sequence[Continuation],
        ends: Sequence[bool],
        num_output: int,
    ) -> None:
        """Take what has just ended into `finished`, and keep the best."""
        if not self._can_improve or (self._early_stopping and len(self.finished) == self._num_beams):
            return
        divisor = np.float32(float(num_output) ** self._length_penalty)
        for continuation, end in zip(ranked[: self._num_beams], ends, strict=False):
            if end:
                self.finished.append(
                    Hypothesis(
                        token_ids=(*beams[continuation.parent][0], continuation.token_id),
                        score=float(np.float32(continuation.score) / divisor),
                        ended=continuation.token_id in self._end_token_ids,
                    )
                )
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: of equals the older stays ahead
        del self.finished[self._num_beams :]
