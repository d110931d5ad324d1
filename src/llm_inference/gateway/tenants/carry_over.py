"""Budgets that outlive a restart: what the ledger says was used in this day and month, put into counters in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from llm_inference.gateway.tenants.limit_store import MemoryLimits
from llm_inference.gateway.tenants.limits import Limits, Subject, charges_of, window_at
from llm_inference.gateway.tenants.prices import FREE, Price

#: Whatever the true limits are: counters hold what was used, and a limit is compared when somebody asks.
_DAY = Limits(tokens_per_day=1, price_per_day=1)
_MONTH = Limits(tokens_per_month=1, price_per_month=1)


class SumsUp(Protocol):
    """`LedgerStore`, as far as it is needed here."""

    def usage(self, by: list[str], since: float | None = None) -> list[dict[str, Any]]: ...


def carry_over(limits: MemoryLimits, ledger: SumsUp, prices: Mapping[str, Price], now: float) -> None:
    """Before the first request. Addresses stand in no ledger: theirs begin anew. Raises `NotReadyError`."""
    today, _ = window_at(now, "day")
    month_began = now - (int(today[-2:]) * 86_400)
    this_month, _ = window_at(now, "month")
    for row in ledger.usage(["key", "day"], since=month_began):
        if not row["day"].startswith(this_month):
            continue
        tokens = row["prompt_tokens"] + row["completion_tokens"]
        price = prices.get(row["model"], FREE).nanos(
            row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"]
        )
        for name in (f"key:{row['key']}", f"model:{row['model']}"):
            for window in (_MONTH, _DAY) if row["day"] == today else (_MONTH,):
                for charge in charges_of(Subject(name, "", window), tokens, price, now):
                    limits.preset(charge)
