"""What the operator says about the queue at the door, as plain values. Without any there is no queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DegradeRule:
    """From a filling of the queue on (0 to 1), answers are at most so long (None: as ever), or of the next tier."""

    when_queue_above: float
    max_tokens: int | None = None
    lower_tier: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """`max_queue_requests` 0: nobody waits, a full server refuses at once. None: not bounded, or not looked at."""

    max_queue_requests: int = 0
    max_queue_tokens: int | None = None
    max_wait_s: float = 10.0
    ageing_s: float = 5.0  # a waiting request's priority gets better by one in this time
    max_kv_cache_usage: float | None = None  # above it an engine takes nothing new that it would only queue
    shares: Mapping[str, float] = field(default_factory=dict)  # tier → weight; others have 1
    degrade: tuple[DegradeRule, ...] = ()


NO_QUEUE = AdmissionRules()
