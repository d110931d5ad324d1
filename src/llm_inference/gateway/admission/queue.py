"""The order of those who wait: tiers by their shares, in a tier by priority with ageing, then the keys by turns.

    tiers     weighted fair queueing (Demers, Keshav and Shenker, 1989) by tokens: each tier has a clock that runs by
              tokens / weight; the tier that is furthest behind is next. A tier that was empty starts at the others'
              time, so nothing is saved up, and one that is alone gets everything.
    priority  lower first; better by one for every `ageing_s` of waiting, down to the best that is waiting here. So
              nobody starves, and waiting never puts a request before others of its own priority.
    keys      of equal priority by turns: who has had none for longest is next. One key with a thousand requests
              delays another's first by one request.

Pure data: no clock, no event loop. A lane is a FIFO, and only the heads of lanes are looked at.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Waiting:
    """One who waits. `since` is in seconds of the caller's clock; `ticket` is the caller's own."""

    key: str
    tokens: int
    since: float
    tier: str = ""
    priority: int = 0
    model: str = ""
    ticket: Any = None
    gone: bool = False  # left by itself; the lane is tidied when it comes to its head


@dataclass(slots=True)
class _Tier:
    weight: float
    clock: float = 0.0
    size: int = 0
    lanes: dict[tuple[str, int, str], deque[Waiting]] = field(default_factory=dict)  # by key, priority, model
    priorities: Counter[int] = field(default_factory=Counter)


class FairQueue:
    """`shares`: tier → weight, 1 where none is said."""

    def __init__(self, shares: Mapping[str, float] | None = None, ageing_s: float = 5.0) -> None:
        self._shares = dict(shares or {})
        self._ageing_s = ageing_s
        self._tiers: dict[str, _Tier] = {}
        self._turns: dict[str, int] = {}  # key → the number of its last turn, while it waits
        self._turn = 0
        self._time = 0.0  # the clock of the tier that was served last
        self._per_key: Counter[str] = Counter()
        self._size = 0
        self.num_tokens = 0

    def __len__(self) -> int:
        return self._size

    def num_of(self, key: str) -> int:
        return self._per_key[key]

    def push(self, one: Waiting) -> None:
        tier = self._tiers.get(one.tier)
        if tier is None:
            tier = self._tiers[one.tier] = _Tier(self._shares.get(one.tier, 1.0))
        if not tier.size:
            tier.clock = max(tier.clock, self._time)
        tier.size += 1
        tier.priorities[one.priority] += 1
        tier.lanes.setdefault((one.key, one.priority, one.model), deque()).append(one)
        # A key that comes anew is not before those that already wait for their turn.
        self._turns.setdefault(one.key, self._turn)
        self._per_key[one.key] += 1
        self._size += 1
        self.num_tokens += one.tokens

    def pop(self, now: float, blocked: Callable[[str], bool] = lambda model: False) -> Waiting | None:
        """Who is next; None if nobody waits, or only for models that are `blocked`. Takes it out."""
        asked: dict[str, bool] = {}

        def is_blocked(model: str) -> bool:
            if model not in asked:
                asked[model] = blocked(model)
            return asked[model]

        for tier in sorted((tier for tier in self._tiers.values() if tier.size), key=lambda one: one.clock):
            best = self._best(tier, now, is_blocked)
            if best is None:
                continue
            self._time = tier.clock
            tier.clock += max(best.tokens, 1) / tier.weight
            self._turn += 1
            self._turns[best.key] = self._turn
            self.remove(best)
            return best
        return None

    def remove(self, one: Waiting) -> None:
        """Take out `one`, which waits here."""
        one.gone = True
        tier = self._tiers[one.tier]
        tier.size -= 1
        tier.priorities[one.priority] -= 1
        if not tier.priorities[one.priority]:
            del tier.priorities[one.priority]
        lane = tier.lanes[one.key, one.priority, one.model]
        while lane and lane[0].gone:
            lane.popleft()
        if not lane:
            del tier.lanes[one.key, one.priority, one.model]
        self._per_key[one.key] -= 1
        if not self._per_key[one.key]:
            del self._per_key[one.key]
            del self._turns[one.key]
        self._size -= 1
        self.num_tokens -= one.tokens

    def num_ahead(self, key: str, tier_name: str, priority: int) -> int:
        """How many would be let in before a new request of `key`, at most and without ageing."""
        tier = self._tiers.get(tier_name)
        as_urgent = 0 if tier is None else sum(num for level, num in tier.priorities.items() if level <= priority)
        own = min(as_urgent, (self._per_key[key] + 1) * len(self._per_key))
        weight = self._shares.get(tier_name, 1.0)
        others = (
            min(other.size, math.ceil((own + 1) * other.weight / weight))
            for name, other in self._tiers.items()
            if name != tier_name
        )
        return own + sum(others)

    def greediest(self) -> str:
        """The key with the most requests here; "" where nobody waits."""
        return max(self._per_key, key=self._per_key.__getitem__, default="")

    def last_of(self, key: str) -> Waiting | None:
        """The request of `key` that is least urgent, and among those the newest."""
        mine = [one for one in self if one.key == key]
        return max(mine, key=lambda one: (one.priority, one.since), default=None)

    def __iter__(self) -> Iterator[Waiting]:
        return (one for tier in self._tiers.values() for lane in tier.lanes.values() for one in lane if not one.gone)

    def _best(self, tier: _Tier, now: float, is_blocked: Callable[[str], bool]) -> Waiting | None:
        floor = min(tier.priorities)
        best: Waiting | None = None
        best_rank: tuple[int, int, float] | None = None
        for lane in tier.lanes.values():
            head = lane[0]
            if is_blocked(head.model):
                continue
            aged = head.priority - int((now - head.since) / self._ageing_s)
            rank = (max(aged, floor), self._turns[head.key], head.since)
            if best_rank is None or rank < best_rank:
                best, best_rank = head, rank
        return best
