"""Whether a model's engines are full, as their statistics say: what they would take in now would only wait there."""

from __future__ import annotations

from collections.abc import Callable

from llm_inference.engine.base import ReportsStats
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.router import Router


def full_engines(router: Router, max_kv_cache_usage: float | None) -> Callable[[str], bool]:
    """Served name → whether every engine behind it uses `max_kv_cache_usage` of its KV cache or more.

    None: nothing is ever full. An engine that does not tell is not.
    """
    if max_kv_cache_usage is None:
        return lambda model: False
    limit = max_kv_cache_usage

    def is_full(replica: Replica) -> bool:
        if not isinstance(replica.engine, ReportsStats):
            return False
        usage = replica.engine.stats().kv_cache_usage
        return usage is not None and usage >= limit

    def full(model: str) -> bool:
        group = router.table.groups.get(model)
        if group is None:
            return False
        # A shadow takes nobody's requests, and one that is left alone takes none now.
        able = [one for entry in group.deployments if not entry.shadow for one in entry.replicas if one.available]
        return bool(able) and all(map(is_full, able))

    return full
