"""What raises or lowers single tokens' logits for a sequence: penalties, logit_bias, the ban on ending too early.

The state of a sequence grows by what was sampled since the last step; nothing is counted twice or from the start.
Applied sparsely: only tokens that a sequence has seen are touched, all rows in one pair of indexing calls. A row may be
for the place behind some drafted tokens: they count for that row as if they had been sampled.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch

from llm_inference.native.request import Sequence
from llm_inference.native.transfer import to_device

#: What float32 can hold and divide by.
_MIN_PENALTY = 1e-30
_MAX_LOGIT = 1e30


class TokenCounts:
    """The distinct tokens of one sequence, and how often each was generated."""

    __slots__ = ("_counts", "_ids", "_num_seen", "_places", "_size")

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)
        self._size = 0
        self._num_seen = 0

    def update(self, sequence: Sequence) -> None:
        """Take in tokens that came since the last call."""
        start, self._num_seen = self._num_seen, len(sequence.token_ids)
        for position in range(start, self._num_seen):
            place = self._place(sequence.token_ids[position])
            if position >= sequence.num_prompt_tokens:
                self._counts[place] += 1

    @property
    def ids(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Distinct token ids of prompt and output."""
        return self._ids[: self._size]

    @property
    def counts(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Occurrences in the output, aligned with `ids`; 0 for tokens of the prompt alone."""
        return self._counts[: self._size]

    def with_draft(
        self, drafted: tuple[int, ...]
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """`ids` and `counts` as they would be after `drafted`; what is counted stays as it is."""
        if not drafted:
            return self.ids, self.counts
        fresh = [token_id for token_id in dict.fromkeys(drafted) if token_id not in self._places]
        fresh_places = {token_id: self._size + number for number, token_id in enumerate(fresh)}
        ids = np.concatenate([self.ids, np.array(fresh, dtype=np.int64)])
        counts = np.concatenate([self.counts, np.zeros(len(fresh), dtype=np.float32)])
        for token_id in drafted:
            place = fresh_places.get(token_id)
            counts[self._places[token_id] if place is None else place] += 1
        return ids, counts

    def _place(self, token_id: int) -> int:
        place = self._places.get(token_id)
        if place is None:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            place = self._places[token_id] = self._size
            self._ids[place] = token_id
            self._size += 1
        return place


class Penalties:
    """Applies what requests ask for, in this order: repetition, presence and frequency, logit_bias,
    min_tokens, forced_eos_token_id."""

    def __init__(self) -> None:
        self._counts: dict[Sequence, TokenCounts] = {}

    def forget(self, sequence: Sequence) -> None:
        """Drop a sequence's state. Unknown ones are ignored."""
        self._counts.pop(sequence, None)

    @staticmethod
    def concern(sequence: Sequence, num_drafted: int = 0) -> bool:
        """Whether `apply` would change this sequence's row, or the one behind so many drafted tokens."""
        return (
            _is_penalized(sequence)
            or bool(sequence.request.sampling.logit_bias)
            or bool(_banned(sequence, num_drafted))
            or _forced(sequence, num_drafted) is not None
        )

    def apply(
        self, logits: torch.Tensor, sequences: Rows[Sequence], drafted: Rows[tuple[int, ...]] | None = None
    ) -> None:
        """Change rows of `logits [rows, vocab]` float32 in place. Row i comes after `sequences[i]` and `drafted[i]`.

        Repetition: a seen token's logit is divided by the penalty if positive, else multiplied by it (CTRL,
        arXiv:1909.05858). Presence and frequency are subtracted, for tokens of the output only. Banned tokens
        become -inf. In the last place that `max_tokens` leaves, all but the forced token do (it gets 0, as in
        transformers' ForcedEOSTokenLogitsProcessor).
        """
        drafted = [()] * len(sequences) if drafted is None else drafted
        self._apply_counts(logits, sequences, drafted)
        self._apply_bias(logits, sequences)
        rows: list[int] = []
        ids: list[int] = []
        for row, sequence in enumerate(sequences):
            banned = _banned(sequence, len(drafted[row]))
            rows.extend([row] * len(banned))
            ids.extend(banned)
        if rows:
            logits[_to(rows, logits), _to(ids, logits)] = float("-inf")
        for row, sequence in enumerate(sequences):
            forced = _forced(sequence, len(drafted[row]))
            if forced is not None:
                logits[row] = float("-inf")
                logits[row, forced] = 0.0

    def _apply_counts(self, logits: torch.Tensor, sequences: Rows[Sequence], drafted: Rows[tuple[int, ...]]) -> None:
        rows, ids, factors, offsets = [], [], [], []
        for row, sequence in enumerate(sequences):
            if not _is_penalized(sequence):
                continue
            counts = self._counts.get(sequence)
            if counts is None:
                counts = self._counts[sequence] = TokenCounts()
            counts.update(sequence)
            seen, times = counts.with_draft(drafted[row])
            sampling = sequence.request.sampling
            size = len(seen)
            rows.append(np.full(size, row, dtype=np.int64))
            ids.append(seen)
            factors.append(np.full(size, max(sampling.repetition_penalty or 1.0, _MIN_PENALTY), dtype=np.float32))
            offsets.append(
                (sampling.presence_penalty or 0.0) * (times > 0) + (sampling.frequency_penalty or 0.0) * times
            )
        if not rows:
            return
        place = (_to(np.concatenate(rows), logits), _to(np.concatenate(ids), logits))
        factor = _to(np.concatenate(factors), logits)
        values = logits[place]
        values = torch.where(values > 0, values / factor, values * factor)
        values -= _to(np.concatenate(offsets).astype(np.float32), logits)
        logits[place] = values.clamp_(max=_MAX_LOGIT)  # the smallest penalties would make infinities

    @staticmethod
    def _apply_bias(logits: torch.Tensor, sequences: Rows[Sequence]) -> None:
        rows: list[int] = []
        ids: list[int] = []
        biases: list[float] = []
        for row, sequence in enumerate(sequences):
            bias = sequence.request.sampling.logit_bias
            if bias:
                rows.extend([row] * len(bias))
                ids.extend(bias.keys())
                biases.extend(bias.values())
        if rows:
            place = (_to(rows, logits), _to(ids, logits))
            logits[place] += to_device(biases, logits.device, logits.dtype)


def _is_penalized(sequence: Sequence) -> bool:
    sampling = sequence.request.sampling
    return (
        sampling.repetition_penalty not in (None, 1.0)
        or bool(sampling.presence_penalty)
        or bool(sampling.frequency_penalty)
    )


def _banned(sequence: Sequence, num_drafted: int) -> tuple[int, ...]:
    """Tokens that would end the sequence before `min_tokens` are out."""
    sampling = sequence.request.sampling
    if sequence.num_output_tokens + num_drafted >= sampling.min_tokens:
        return ()
    ending = sampling.stop_token_ids
    return ending if sampling.ignore_eos else ending + sequence.request.eos_token_ids


def _forced(sequence: Sequence, num_drafted: int) -> int | None:
    """The token that must come now: the last one that `max_tokens` allows, where the request asked for it."""
    sampling = sequence.request.sampling
    if sampling.forced_eos_token_id is None or sampling.max_tokens is None:
        return None
    is_last = sequence.num_output_tokens + num_drafted == sampling.max_tokens - 1
    return sampling.forced_eos_token_id if is_last else None


def _to(values: object, like: torch.Tensor) -> torch.Tensor:
    return to_device(values, like.device)
