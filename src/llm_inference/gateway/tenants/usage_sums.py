"""Sums of the ledger as people read them: joined over what was not asked for, with prices where any are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_inference.gateway.tenants.prices import Price

#: What is summed up, beside the price.
SUMS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "duration_s")


def join(rows: Sequence[dict[str, Any]], by: Sequence[str], known: Mapping[str, Price]) -> list[dict[str, Any]]:
    """One row for each combination of `by`, of `LedgerStore.usage`'s rows, which are apart by model.

    Each has the names of `by`, those of `SUMS`, and `price` where `known` (by model) is not empty.
    """
    joined: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        total = joined.setdefault(
            tuple(row[name] for name in by), {**{name: row[name] for name in by}, **dict.fromkeys(SUMS, 0)}
        )
        for name in SUMS:
            total[name] += row[name]
        if known:
            price = known.get(row["model"])
            more = 0.0
            if price is not None:
                more = price.of(row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"])
            total["price"] = total.get("price", 0.0) + more
    for total in joined.values():
        total["duration_s"] = round(total["duration_s"], 3)
        if "price" in total:
            total["price"] = round(total["price"], 9)
    return list(joined.values())
