"""How well the answers of lower tiers agree with the best one's, and which of them are demoted for it.

    active ──mean of the window under the threshold──► demoted: takes no requests, is compared all the same
       ▲                                                   │
       └────── so many good comparisons in a row, ─────────┘
               or an operator restores it

Pure bookkeeping: who compares, and when, is in `shadowing.py`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from llm_inference.engine.types import Delta

_LOG = logging.getLogger("llm_inference.gateway.routing")


@dataclass(frozen=True, slots=True)
class AgreementRules:
    """See `config/routing.py`."""

    sample: float = 0.05
    threshold: float = 0.8
    window: int = 50
    min_samples: int = 10
    restore_after: int = 20
    max_queue: int = 16


@dataclass(slots=True)
class Answer:
    """One answer's only choice while it grows."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finished: bool = False

    def add(self, delta: Delta) -> None:
        self.text.append(delta.reasoning)
        self.text.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(entry.logprob for entry in delta.logprobs or ())
        self.finished = delta.finish_reason in ("stop", "length", "tool_calls")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`share`: of the positions of the longer answer, those where both have the same token (0 to 1)."""

    share: float
    first_divergence: int | None  # the first position where they differ; None: nowhere
    logprob_gap: float | None = None  # mean absolute difference before that, in nats; None: not known


def compare(reference: Answer, other: Answer) -> Comparison:
    """By tokens; by characters where one of the engines names no tokens."""
    ours: list[int] | str = reference.token_ids
    theirs: list[int] | str = other.token_ids
    if not (ours and theirs):
        ours, theirs = "".join(reference.text), "".join(other.text)
    longest = max(len(ours), len(theirs))
    if not longest:
        return Comparison(1.0, None)
    same = [a == b for a, b in zip(ours, theirs, strict=False)]
    first = next((place for place, equal in enumerate(same) if not equal), len(same))
    gaps = [
        abs(a - b)
        for a, b in zip(reference.logprobs[:first], other.logprobs[:first], strict=False)
        if a is not None and b is not None
    ]
    gap = sum(gaps) / len(gaps) if gaps else None
    return Comparison(sum(same) / longest, None if first == longest else first, gap)


@dataclass(frozen=True, slots=True)
class TierAgreement:
    """What is known of one tier. Means are over the window; None: nothing yet."""

    demoted: bool
    num_samples: int  # ever
    share: float | None
    first_divergence: float | None  # mean over the answers that diverged
    logprob_gap: float | None


@dataclass(slots=True)
class _Tier:
    window: deque[Comparison]
    demoted: bool = False
    num_samples: int = 0
    num_good: int = 0  # in a row


class Agreement:
    """`golden` is the best tier: the others are measured by it, and it is never demoted."""

    def __init__(self, rules: AgreementRules, golden: str) -> None:
        self.rules = rules
        self.golden = golden
        self._tiers: dict[str, _Tier] = {}

    def demoted(self, tier: str) -> bool:
        known = self._tiers.get(tier)
        return known is not None and known.demoted

    @property
    def any_demoted(self) -> bool:
        return any(tier.demoted for tier in self._tiers.values())

    def record(self, tier: str, comparison: Comparison) -> None:
        """Another comparison of `tier` with the golden one; may demote or restore it."""
        rules = self.rules
        known = self._tiers.setdefault(tier, _Tier(deque(maxlen=rules.window)))
        known.window.append(comparison)
        known.num_samples += 1
        known.num_good = known.num_good + 1 if comparison.share >= rules.threshold else 0
        if known.demoted:
            if known.num_good >= rules.restore_after:
                self.restore(tier)
        elif len(known.window) >= rules.min_samples:
            mean = sum(one.share for one in known.window) / len(known.window)
            if mean < rules.threshold:
                known.demoted = True
                known.num_good = 0
                _LOG.warning(
                    "tier %s is demoted: over %d answers it agrees with %s by %.3f, less than %.3f",
                    tier, len(known.window), self.golden, mean, rules.threshold,
                )  # fmt: skip

    def restore(self, tier: str) -> bool:
        """Let it take requests again and judge it anew. False: it was not demoted."""
        known = self._tiers.get(tier)
        if known is None or not known.demoted:
            return False
        known.demoted = False
        known.window.clear()
        _LOG.info("tier %s takes requests again", tier)
        return True

    def take_over(self, other: Agreement, tiers: Collection[str]) -> None:
        """What `other` knows of `tiers`, which are the same engines: a reload is no reason to trust one again."""
        for name in tiers:
            known = other._tiers.get(name)
            if known is not None:
                window = deque(known.window, maxlen=self.rules.window)
                self._tiers[name] = _Tier(window, known.demoted, known.num_samples, known.num_good)

    def report(self) -> dict[str, TierAgreement]:
        """Of every tier that was compared."""
        return {name: _report(tier) for name, tier in self._tiers.items()}


def _report(tier: _Tier) -> TierAgreement:
    shares = [one.share for one in tier.window]
    diverged = [float(one.first_divergence) for one in tier.window if one.first_divergence is not None]
    gaps = [one.logprob_gap for one in tier.window if one.logprob_gap is not None]
    return TierAgreement(tier.demoted, tier.num_samples, _mean(shares), _mean(diverged), _mean(gaps))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
