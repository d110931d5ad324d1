from __future__ import annotations

import calendar
from pathlib import Path

from llm_inference.gateway.tenants.carry_over import carry_over
from llm_inference.gateway.tenants.ledger import Entry
from llm_inference.gateway.tenants.ledger_store import LedgerStore
from llm_inference.gateway.tenants.limit_store import MemoryLimits
from llm_inference.gateway.tenants.limits import NANO, Limits, Subject, charges_of
from llm_inference.gateway.tenants.prices import Price


def at(month: int, day: int, hour: int) -> float:
    return float(calendar.timegm((2026, month, day, hour, 0, 0, 0, 0, 0)))


def test_what_was_used_before_the_restart_counts(tmp_path: Path) -> None:
    now = at(11, 30, 18)
    store = LedgerStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    times = [at(11, 30, 1), at(11, 1, 0), at(10, 31, 23), at(11, 30, 0)]
    keys = ["k_1", "k_1", "k_1", "k_2"]
    store.write(
        [
            Entry(f"r{row}", time, "r", key, "m", "/x", "", "", 200, "stop", 60, 40, 0, None, 0.5)
            for row, (time, key) in enumerate(zip(times, keys, strict=True))
        ]
    )
    limits = MemoryLimits()
    carry_over(limits, store, {"m": Price(input=0, output=1_000_000)}, now)
    store.close()

    wanted = Limits(tokens_per_day=1000, tokens_per_month=1000, price_per_day=1000, price_per_month=1000)
    for key, remaining in (
        ("key:k_1", (900, 960 * NANO, 800, 920 * NANO)),
        ("key:k_2", (900, 960 * NANO, 900, 960 * NANO)),
        ("model:m", (800, 920 * NANO, 700, 880 * NANO)),
        ("key:k_3", (1000, 1000 * NANO, 1000, 1000 * NANO)),
    ):
        charges = charges_of(Subject(key, "", wanted), 0, 0, now)
        assert [charge.name for charge in charges] == [
            "tokens_per_day", "price_per_day", "tokens_per_month", "price_per_month"
        ]  # fmt: skip
        assert tuple(state.remaining for state in limits.decide(charges, "r").states) == remaining
