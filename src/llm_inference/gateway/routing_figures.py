"""What routing reports at a scrape: how tiers agree, which replicas take requests, what was copied and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from llm_inference.engine.held import Held
from llm_inference.gateway.routing.mirror import Mirror
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.shadowing import Shadowing
from llm_inference.telemetry.metrics import Metrics

_Labels = tuple[str, ...]


def report_routing(router: Callable[[], Router], metrics: Metrics) -> None:
    """At every scrape, from the router of that moment. With several workers gauges are the view of the one that
    answers, counters are the sum."""

    async def refresh() -> None:
        agreement: dict[_Labels, float] = {}
        available: dict[_Labels, float] = {}
        loaded: dict[_Labels, float] = {}
        for group in router().table.groups.values():
            if group.shadowing is not None:
                for tier, report in group.shadowing.agreement.report().items():
                    if report.share is not None:
                        agreement[(group.name, tier)] = report.share
            several = len(group.replicas) > 1
            if several:
                available |= {(group.name, replica.id): float(replica.available) for replica in group.replicas}
            for replica in group.replicas:
                if several or (isinstance(replica.engine, Held) and replica.engine.lazy):
                    loaded[group.name, replica.id] = float(replica.loaded)
        metrics.set_once("golden_agreement_ratio", agreement)
        metrics.set_once("replica_available", available)
        metrics.set_once("replica_loaded", loaded)

    metrics.before_scrape(refresh)
    metrics.watch_counter("shadow_copies_total", _Sums(lambda: _copies(router())).read)
    metrics.watch_counter("tier_comparisons_total", _Sums(lambda: _comparisons(router())).read)


def _copies(router: Router) -> Iterator[tuple[Mirror | Shadowing, dict[_Labels, int]]]:
    for group in router.table.groups.values():
        shadows = [entry for entry in group.deployments if entry.shadow > 0]
        for entry, mirror in zip(shadows, group.mirrors, strict=True):
            place = (group.name, entry.version)
            counts = {"copied": mirror.num_copied, "dropped": mirror.num_dropped, "failed": mirror.num_failed}
            yield mirror, {(*place, outcome): count for outcome, count in counts.items()}


def _comparisons(router: Router) -> Iterator[tuple[Mirror | Shadowing, dict[_Labels, int]]]:
    for group in router.table.groups.values():
        if group.shadowing is not None:
            counts = {"replayed": group.shadowing.num_replayed, "dropped": group.shadowing.num_dropped}
            yield group.shadowing, {(group.name, outcome): count for outcome, count in counts.items()}


class _Sums:
    """Counts of objects that a reload replaces by others, which begin anew: the sum goes on."""

    def __init__(self, read: Callable[[], Iterator[tuple[Mirror | Shadowing, dict[_Labels, int]]]]) -> None:
        self._read = read
        self._seen: WeakKeyDictionary[Mirror | Shadowing, dict[_Labels, int]] = WeakKeyDictionary()
        self._sums: dict[_Labels, float] = {}

    def read(self) -> dict[_Labels, float]:
        for counter, counts in self._read():
            before = self._seen.get(counter, {})
            for labels, count in counts.items():
                self._sums[labels] = self._sums.get(labels, 0.0) + count - before.get(labels, 0)
            self._seen[counter] = counts
        return self._sums
