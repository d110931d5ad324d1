"""What a caller may use, as numbers, and what one request takes of it. Pure data; counting is `limit_store.py`'s.

Two kinds of counters, both in whole numbers, so that nothing is rounded away:

    rate      a bucket that a minute's worth fits into and that drains evenly (the GCRA of ATM networks, told by its
              level). Burst: the whole limit at once; after that as fast as it drains. In any t seconds at most
              limit + limit * t / 60 pass. A fixed window would let two limits pass within a second, at its border; a
              log of the last minute's requests is exact as well, but as large as the limit.
    budget    a sum over a UTC day or month, as people understand it.

And leases: how many requests are in flight.
"""

from __future__ import annotations

import calendar
import time
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Literal

import msgspec

RATE_PERIOD_MS = 60_000
_DAY_S = 86_400
#: Prices are counted in billionths of whatever currency they are in.
NANO = 1_000_000_000

Unit = Literal["requests", "tokens", "price"]
Kind = Literal["rate", "budget", "lease"]


@dataclass(frozen=True, slots=True)
class Limits:
    """None: not limited. Tokens are those of prompt and answer together, except in the two `max_*_tokens`."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    price_per_day: float | None = None
    price_per_month: float | None = None

    def over(self, defaults: Limits) -> Limits:
        """These, and the defaults' where these say nothing."""
        if defaults == NO_LIMITS:
            return self
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        return Limits(**{name: getattr(defaults, name) if value is None else value for name, value in said.items()})


NO_LIMITS = Limits()


#: Limits by kind and unit; budgets with the period after which they begin anew.
_COUNTED: tuple[tuple[str, Kind, Unit, str], ...] = (
    ("requests_per_minute", "rate", "requests", ""),
    ("tokens_per_minute", "rate", "tokens", ""),
    ("max_concurrent_requests", "lease", "requests", ""),
    ("tokens_per_day", "budget", "tokens", "day"),
    ("price_per_day", "budget", "price", "day"),
    ("tokens_per_month", "budget", "tokens", "month"),
    ("price_per_month", "budget", "price", "month"),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose limits: `key` is its name in the counters, `label` the words for people."""

    key: str  # "key:k_…", "address:…", "model:…"
    label: str  # "this API key"
    limits: Limits
    #: Of each limit that is set: its field, kind, unit and period, the limit in that unit, its counter's key.
    counted: tuple[tuple[str, Kind, Unit, str, int, str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = []
        for name, kind, unit, period in _COUNTED:
            limit = getattr(self.limits, name)
            if limit is not None:
                whole = round(limit * NANO) if unit == "price" else limit
                found.append((name, kind, unit, period, whole, f"{self.key}:{name}"))
        object.__setattr__(self, "counted", tuple(found))


# Structs from here on: a request makes a dozen of them, and a frozen dataclass takes ten times as long to make.


class Charge(msgspec.Struct, frozen=True):
    """What one request takes of one limit. `key` names the counter; of a budget also its window, which ends then."""

    subject: str  # its key
    label: str
    name: str  # the field of `Limits`
    kind: Kind
    unit: Unit
    limit: int
    amount: int
    key: str
    ends_ms: int = 0  # Unix milliseconds; budgets alone


class State(msgspec.Struct, frozen=True):
    """How a limit stands after a decision. `reset_s`: until all of it is free again."""

    remaining: int
    reset_s: float


class Verdict(msgspec.Struct, frozen=True):
    """`states` belong to the charges, in their order. `refused` is the place of the first charge that does not fit.

    Nothing was taken when one does not fit. `retry_after_s` is None where waiting will not help.
    """

    states: tuple[State, ...]
    refused: int | None = None
    retry_after_s: float | None = None


def charges_of(subject: Subject, tokens: int, price: int, now: float) -> list[Charge]:
    """What a request of `tokens` tokens and `price` billionths takes of the subject's limits, `now` in Unix seconds."""
    found: list[Charge] = []
    for name, kind, unit, period, limit, key in subject.counted:
        ends_ms = 0
        if period:
            window, ends_ms = window_at(now, period)
            key = f"{key}:{window}"
        amount = 1 if unit == "requests" else tokens if unit == "tokens" else price
        found.append(Charge(subject.key, subject.label, name, kind, unit, limit, amount, key, ends_ms))
    return found


def window_at(now: float, period: str) -> tuple[str, int]:
    """The name of the UTC day or month at `now`, and its end in Unix milliseconds."""
    return _window(int(now) // _DAY_S, period)


@lru_cache(maxsize=4)  # every request of a day asks for the same
def _window(day: int, period: str) -> tuple[str, int]:
    at = time.gmtime(day * _DAY_S)
    if period == "day":
        return time.strftime("%Y-%m-%d", at), (day + 1) * _DAY_S * 1000
    year, month = (at.tm_year + 1, 1) if at.tm_mon == 12 else (at.tm_year, at.tm_mon + 1)
    return time.strftime("%Y-%m", at), calendar.timegm((year, month, 1, 0, 0, 0)) * 1000
