"""What routing has to report at a scrape: how far tiers agree, and which replicas are left alone."""

from __future__ import annotations

from collections.abc import Callable

from llm_inference.gateway.routing.router import Router
from llm_inference.telemetry.metrics import Metrics


def report_routing(router: Callable[[], Router], metrics: Metrics) -> None:
    """At every scrape, from the router of that moment. With several workers it is the view of the one that answers."""

    async def refresh() -> None:
        agreement: dict[tuple[str, ...], float] = {}
        available: dict[tuple[str, ...], float] = {}
        for group in router().table.groups.values():
            if group.shadowing is not None:
                for tier, report in group.shadowing.agreement.report().items():
                    if report.share is not None:
                        agreement[(group.name, tier)] = report.share
            if len(group.replicas) > 1:
                available |= {(group.name, replica.id): float(replica.available) for replica in group.replicas}
        metrics.set_once("golden_agreement_ratio", agreement)
        metrics.set_once("replica_available", available)

    metrics.before_scrape(refresh)
