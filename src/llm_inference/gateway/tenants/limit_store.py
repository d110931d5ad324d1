"""Where limits are counted: the contract, and the counters of one process.

A decision is all or nothing over all charges of a request, so that a refused request has taken nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from llm_inference.gateway.tenants.limits import RATE_PERIOD_MS, Charge, State, Verdict

#: What a caller with too many requests in flight is told: nobody knows when one of them ends.
LEASE_RETRY_S = 1.0
#: After so many decisions counters that stand at zero are forgotten: there is one for every client's address.
_SWEEP_EVERY = 4096


class Use(msgspec.Struct, frozen=True):
    """What a granted charge came to in the end."""

    charge: Charge
    actual: int


class LimitStore(Protocol):
    async def reserve(self, charges: Sequence[Charge], lease: str) -> Verdict:
        """Take all charges or none. `lease` names the request, for `settle`. Raises `NotReadyError`."""
        ...

    def settle(self, uses: Sequence[Use], lease: str) -> None:
        """The end of a granted request: its charges become what was used, and its lease is free. Never raises,
        never waits: a request may end by cancellation.
        """
        ...

    async def close(self) -> None: ...


def level_state(charge: Charge, used: int, now_ms: int) -> State:
    """How a limit stands at `used`; of a rate in `RATE_PERIOD_MS` of a unit, as both stores count it."""
    if charge.kind == "rate":
        remaining = (charge.limit * RATE_PERIOD_MS - used) // RATE_PERIOD_MS
        return State(remaining if remaining > 0 else 0, used / charge.limit / 1000)
    reset_s = max(charge.ends_ms - now_ms, 0) / 1000 if charge.kind == "budget" else 0.0
    return State(max(charge.limit - used, 0), reset_s)


def retry_after(charge: Charge, used: int, now_ms: int) -> float | None:
    """Seconds until a refused charge would fit; None: it never will, it is more than the limit itself."""
    if charge.amount > charge.limit:
        return None
    if charge.kind == "rate":
        over = used + (charge.amount - charge.limit) * RATE_PERIOD_MS
        return over / charge.limit / 1000
    if charge.kind == "budget":
        return max(charge.ends_ms - now_ms, 0) / 1000
    return LEASE_RETRY_S


@dataclass(slots=True)
class _Counter:
    used: int = 0
    at_ms: int = 0
    drain: int = 0  # per millisecond; rates alone
    ends_ms: int = 0  # budgets alone
    leases: set[str] = field(default_factory=set)

    def level(self, now_ms: int) -> int:
        if self.drain:
            passed_ms = now_ms - self.at_ms
            if passed_ms > 0 and self.used:
                self.used = max(0, self.used - passed_ms * self.drain)
            self.at_ms = now_ms  # also where the machine's clock was put back: it would not drain until then
        return len(self.leases) or self.used

    def is_idle(self, now_ms: int) -> bool:
        return self.ends_ms < now_ms if self.ends_ms else not self.level(now_ms)


class MemoryLimits:
    """Counters of this process alone, gone with it. One event loop, no locks; a decision is one step of it."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}
        self._num_decisions = 0

    async def reserve(self, charges: Sequence[Charge], lease: str) -> Verdict:
        return self.decide(charges, lease)

    def decide(self, charges: Sequence[Charge], lease: str) -> Verdict:
        now_ms = _now_ms()
        self._num_decisions += 1
        if self._num_decisions % _SWEEP_EVERY == 0:
            self._sweep(now_ms)
        counters = [self._counter(charge) for charge in charges]
        levels = [counter.level(now_ms) for counter in counters]
        refused = None
        for place, charge in enumerate(charges):
            # What is left, in the counter's own units.
            if levels[place] > _scaled(charge, charge.limit - charge.amount):
                refused = place
                break
        else:
            levels = [
                self._add(counter, charge, charge.amount, lease)
                for charge, counter in zip(charges, counters, strict=True)
            ]
        states = tuple([level_state(charge, level, now_ms) for charge, level in zip(charges, levels, strict=True)])
        if refused is None:
            return Verdict(states)
        return Verdict(states, refused, retry_after(charges[refused], levels[refused], now_ms))

    def settle(self, uses: Sequence[Use], lease: str) -> None:
        now_ms = _now_ms()
        for use in uses:
            counter = self._counters.get(use.charge.key)
            if counter is None:
                continue  # swept: it had drained, or its day is over
            if use.charge.kind == "lease":
                counter.leases.discard(lease)
                continue
            counter.level(now_ms)
            used = counter.used + _scaled(use.charge, use.actual - use.charge.amount)
            counter.used = used if used > 0 else 0

    def preset(self, charge: Charge) -> None:
        """Count `charge` without a decision: what was used before this process began."""
        self._add(self._counter(charge), charge, charge.amount, "")

    async def close(self) -> None:
        self._counters.clear()

    def __len__(self) -> int:
        return len(self._counters)

    def _counter(self, charge: Charge) -> _Counter:
        counter = self._counters.get(charge.key)
        if counter is None:
            counter = self._counters[charge.key] = _Counter(at_ms=_now_ms(), ends_ms=charge.ends_ms)
        counter.drain = charge.limit if charge.kind == "rate" else 0
        return counter

    def _add(self, counter: _Counter, charge: Charge, amount: int, lease: str) -> int:
        if charge.kind == "lease":
            counter.leases.add(lease)
            return len(counter.leases)
        counter.used += _scaled(charge, amount)
        return counter.used

    def _sweep(self, now_ms: int) -> None:
        for key in [key for key, counter in self._counters.items() if counter.is_idle(now_ms)]:
            del self._counters[key]


def _scaled(charge: Charge, amount: int) -> int:
    """Rates drain by `limit` units of 1/60,000 each millisecond: whole numbers, whatever the limit."""
    return amount * RATE_PERIOD_MS if charge.kind == "rate" else amount


def _now_ms() -> int:
    return int(time.time() * 1000)
