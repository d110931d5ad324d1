"""Several replicas seen as one engine: their health and their load together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_inference.engine.base import EngineStats, Health


def joined_health(states: Mapping[str, Health]) -> Health:
    """A name is as well as its best replica. `reason` names all that are not well. `states`: by replica id."""
    best = max(states.values(), key=lambda state: (state.live, state.ready, state.progressing))
    reasons = [f"{name}: {state.reason}" for name, state in states.items() if state.reason]
    return Health(live=best.live, ready=best.ready, progressing=best.progressing, reason="; ".join(reasons))


def summed_stats(stats: Sequence[EngineStats]) -> EngineStats:
    """Counts are sums, the cache's usage is the mean, its block's size that of all; what is neither is left out."""
    if len(stats) == 1:
        return stats[0]
    totals: dict[str, Any] = {}
    for field in EngineStats.__struct_fields__:
        values = [value for one in stats if (value := getattr(one, field)) is not None]
        if values and all(type(value) is int for value in values):
            totals[field] = sum(values)
    totals["kv_block_size"] = stats[0].kv_block_size if len({one.kv_block_size for one in stats}) == 1 else None
    usages = [one.kv_cache_usage for one in stats if one.kv_cache_usage is not None]
    totals["kv_cache_usage"] = sum(usages) / len(usages) if usages else None
    limited = [set(one.known) for one in stats if one.known is not None]
    if limited:  # what one of them does not know has no sum
        totals["known"] = tuple(sorted(set.intersection(*limited)))
    return EngineStats(**totals)
