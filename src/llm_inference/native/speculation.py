"""Speculative decoding by prompt lookup: drafts of a sequence's next tokens from its own text, and when they pay.

    tokens so far ─► NgramIndex ─► draft ─► one step computes the last token and the draft ─► sampler ─► `num_kept`

The general scheme, and the proof that it keeps the model's distribution, is Leviathan et al., arXiv:2211.17192: accept
a drafted token x with probability min(1, p(x) / q(x)), else sample from norm(max(0, p - q)). A draft that is looked up
is certain (q(x) = 1), so that is: accept with probability p(x), else sample from p without x, renormalized.

Here the same is done in the simpler order **sample, then compare**. In each place the sampler takes a token from p as
it always does, and the draft is right as far as it equals what was taken; the first token that differs stays as the
step's last. A draft is accepted with probability p(x), and given that it is not, the token is distributed as p without
x: exactly the rule above. More than that: a token is a function of its logits and of its own random number (with a
seed: of seed, choice and position), whether it was drafted or not. So a seeded request says the same tokens with
speculation and without, as far as the arithmetic of a step does not depend on its size. And whatever shapes p
(penalties, bans, bias, top_p) is applied by the sampler in each place, to the text as it would be there.

**When it pays.** A token more in a step costs time, little while a step is bound by reading the weights, more in a
large batch. `StepCost` learns how much. A sequence's own rate of acceptance says what a draft is worth; the draft gets
longer while that brings more tokens per second, which may be never. A sequence whose drafts do not pay gets a trial of
one token in the next 16th step, all such sequences in the same one; after a failed trial 32 steps later, up to 256.
After a draft that was wholly right it needs not wait.

No tensors, no blocks, no clock: the scheduler allocates, and says how long a step took.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Final

import msgspec

from llm_inference.native.ngram_index import NgramIndex
from llm_inference.native.request import Sequence
from llm_inference.native.step_cost import StepCost

#: What the verdict on a drafted token weighs after each later one.
_DECAY: Final = 0.9
#: How many verdicts the rate that a new sequence starts with is worth.
_PRIOR_WEIGHT: Final = 2.0
#: A step with drafts samples from so many rows at most: those that memory for logits is planned for.
MAX_ROWS: Final = 64
_TRIAL_EVERY: Final = 16
_LAST_PAUSE: Final = 256


class SpeculationSetup(msgspec.Struct, frozen=True, kw_only=True):
    """How far drafts go: at most `num_tokens`, after a match of `min_ngram` to `max_ngram` tokens."""

    num_tokens: int
    max_ngram: int
    min_ngram: int


def num_kept(drafted: Tokens[int], sampled: Tokens[int]) -> int:
    """How many of the `sampled` tokens stand, at least 1. `sampled[i]` was taken as if `drafted[:i]` came before it."""
    assert len(sampled) == len(drafted) + 1
    for place, token_id in enumerate(drafted):
        if sampled[place] != token_id:
            return place + 1
    return len(sampled)


@dataclass(slots=True)
class _Rate:
    """Of accepted among judged tokens, the recent ones weighing more."""

    accepted: float
    rejected: float

    @property
    def value(self) -> float:
        return self.accepted / (self.accepted + self.rejected)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """What comes after the first rejected token was not judged."""
        num_rejected = int(num_accepted < num_drafted)
        decay = _DECAY ** (num_accepted + num_rejected)
        self.accepted = decay * self.accepted + num_accepted
        self.rejected = decay * self.rejected + num_rejected


@dataclass(slots=True)
class _Record:
    """Of one sequence."""

    index: NgramIndex
    rate: _Rate
    pause: int = 0  # steps to let pass
    next_pause: int = _TRIAL_EVERY
    is_trial: bool = False  # the draft under way is one that is not expected to pay
    was_right: bool = False  # the last draft, wholly


class Speculator:
    """One per scheduler. Holds what it knows of a sequence until `forget`.

    `num_drafted_tokens` and `num_accepted_tokens` count what was computed on trial, and what of it stood.
    """

    def __init__(self, setup: SpeculationSetup | None = None) -> None:
        """Without a `setup` nothing is ever drafted."""
        self.num_drafted_tokens = 0
        self.num_accepted_tokens = 0
        self._num_steps = 0
        self._setup = setup
        self._cost = StepCost()
        self._rate = _Rate(_PRIOR_WEIGHT / 2, _PRIOR_WEIGHT / 2)  # of all sequences: what a new one starts with
        self._records: dict[Sequence, _Record] = {}

    def begin_step(self, num_decoding: int) -> int:
        """How many tokens a step of `num_decoding` sequences may draft in all. Call it before the step's drafts."""
        self._num_steps += 1
        return 0 if self._setup is None else max(MAX_ROWS - num_decoding, 0)

    def draft(self, sequence: Sequence, limit: int, num_decoding: int) -> tuple[int, ...]:
        """Up to `limit` tokens that may come next, in a step of `num_decoding` sequences; () where that does not pay.

        `limit` ≥ 1. Each draft that is computed must be told to `learn`.
        """
        if self._setup is None or not _can_be_judged(sequence):
            return ()
        record = self._records.get(sequence)
        if record is None:
            prior = self._rate.value
            index = NgramIndex(self._setup.min_ngram, self._setup.max_ngram)
            record = _Record(index, _Rate(_PRIOR_WEIGHT * prior, _PRIOR_WEIGHT * (1.0 - prior)))
            self._records[sequence] = record
        if record.pause:
            record.pause -= 1
            return ()
        length = self._best_length(record.rate.value, num_decoding, self._setup.num_tokens)
        record.is_trial = length == 0
        if record.is_trial and not record.was_right and self._num_steps % _TRIAL_EVERY:
            return ()
        return record.index.continuation(sequence.token_ids, min(max(length, 1), limit))

    def learn(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """The verdict on a draft of a live sequence."""
        self.num_drafted_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self._rate.learn(num_drafted, num_accepted)
        record = self._records[sequence]
        record.rate.learn(num_drafted, num_accepted)
        record.was_right = num_accepted == num_drafted
        if record.was_right:
            record.next_pause = _TRIAL_EVERY
        elif record.is_trial:
            record.next_pause = min(2 * record.next_pause, _LAST_PAUSE)
            record.pause = record.next_pause - 1

    def observe_step(self, num_tokens: int, seconds: float) -> None:
        """A step of decodes alone, drafted tokens included, took `seconds`."""
        self._cost.observe(num_tokens, seconds)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is held for a sequence. Unknown ones are ignored."""
        self._records.pop(sequence, None)

    def _best_length(self, rate: float, num_decoding: int, longest: int) -> int:
        """The length that gives the most tokens per second if all `num_decoding` sequences did the same.

        The k-th drafted token brings `rate ** k` tokens, for the cost of one row. It is worth that while it brings
        more per second than all before it.
        """
        step_s, row_s = self._cost.estimate(num_decoding)
        num_tokens, seconds, gain = 1.0, step_s / num_decoding, 1.0  # per sequence
        for length in range(longest):
            gain *= rate
            if gain * seconds < row_s * num_tokens:
                return length
            num_tokens += gain
            seconds += row_s
        return longest


def _can_be_judged(sequence: Sequence) -> bool:
    """Not where the state of a rule or a search would have to be wound back, nor where nothing is generated yet."""
    sampling = sequence.request.sampling
    return (
        sequence.num_output_tokens > 0
        and sampling.num_beams == 1
        and sampling.grammar is None
        and not sampling.logits_processors
    )
