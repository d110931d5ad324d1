"""`GET /admin/models`: every replica and tier, as routing sees them now."""

from __future__ import annotations

import asyncio
from collections.abc import Set

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.base import Health, ReportsStats
from llm_inference.engine.held import HeldState
from llm_inference.gateway.admin.fleet import FleetReport, WorkerReport
from llm_inference.gateway.record import record_of
from llm_inference.gateway.routing.deployment import Deployment, Group
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.routed_engine import health_of
from llm_inference.gateway.state import gateway_of
from llm_inference.gateway.tenants import access


class ReplicaReport(msgspec.Struct, frozen=True):
    """`available`: requests go there; false after failures, until it is tried again, and when it is drained.

    `state`: loaded, loading, unloaded or draining, for `since_s`. Loads are all workers' together; `num_running` and
    `num_waiting` are the engine's own, null where it does not say. Failures are those that this worker saw.
    """

    id: str
    engine: str
    version: str
    tier: str
    weight: float
    shadow: float
    ready: bool
    available: bool
    saturated: bool
    in_flight: int
    outstanding_tokens: int
    num_requests: int
    num_failures: int
    num_ejections: int
    reason: str = ""
    state: HeldState = "loaded"
    since_s: float = 0.0
    lazy: bool = False
    memory_bytes: int | None = None
    resident_bytes: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None


class TierReport(msgspec.Struct, frozen=True):
    """Agreement with the best tier, over the latest comparisons; null: nothing compared."""

    demoted: bool
    num_samples: int = 0
    agreement: float | None = None
    first_divergence: float | None = None
    logprob_gap: float | None = None


class ModelReport(msgspec.Struct, frozen=True):
    name: str
    replicas: list[ReplicaReport]
    tiers: dict[str, TierReport]


class ModelsReport(msgspec.Struct, frozen=True):
    """`workers`: the gateway processes, each with its requests in flight, its queue and its part of each load."""

    models: list[ModelReport]
    workers: list[WorkerReport] = []


async def models(request: Request) -> Response:
    gateway = gateway_of(request)
    names = access.visible(gateway.router, record_of(request.scope).key)
    groups = [group for name, group in gateway.router.table.groups.items() if name in names]
    fleet = FleetReport({}, []) if gateway.fleet is None else await gateway.fleet.report()
    report = ModelsReport(
        [ModelReport(group.name, await _replicas(group, fleet), _tiers(group)) for group in groups],
        [_seen(worker, {replica.id for group in groups for replica in group.replicas}) for worker in fleet.workers],
    )
    return Response(msgspec.json.encode(report), media_type="application/json")


def _seen(worker: WorkerReport, replicas: Set[str]) -> WorkerReport:
    """Without the replicas that the caller may not see."""
    loads = {name: load for name, load in worker.replicas.items() if name in replicas}
    return msgspec.structs.replace(worker, replicas=loads)


async def _replicas(group: Group, fleet: FleetReport) -> list[ReplicaReport]:
    pairs = [(entry, replica) for entry in group.deployments for replica in entry.replicas]
    healths = await asyncio.gather(*(health_of(replica) for _, replica in pairs))
    return [_replica(*pair, health, fleet) for pair, health in zip(pairs, healths, strict=True)]


def _replica(entry: Deployment, replica: Replica, health: Health, fleet: FleetReport) -> ReplicaReport:
    engine = replica.engine
    loads = [worker.replicas[replica.id] for worker in fleet.workers if replica.id in worker.replicas]
    stats = engine.stats() if isinstance(engine, ReportsStats) else None
    kept = fleet.engines.get(replica.id)
    report = ReplicaReport(
        replica.id,
        engine.info.engine,
        entry.version,
        entry.tier,
        entry.weight,
        entry.shadow,
        health.ready,
        replica.available,
        replica.saturated,
        sum(load.in_flight for load in loads) if loads else replica.in_flight,
        sum(load.outstanding_tokens for load in loads) if loads else replica.outstanding_tokens,
        sum(load.num_requests for load in loads) if loads else replica.num_requests,
        replica.num_failures,
        replica.breaker.num_ejections,
        health.reason,
        num_running=stats.num_running if stats is not None else None,
        num_waiting=stats.num_waiting if stats is not None else None,
    )
    if kept is None:
        return report
    return msgspec.structs.replace(
        report,
        reason=health.reason or kept.reason,
        state=kept.state,
        since_s=kept.since_s,
        lazy=kept.lazy,
        memory_bytes=kept.memory_bytes,
        resident_bytes=kept.resident_bytes,
    )


def _tiers(group: Group) -> dict[str, TierReport]:
    compared = {} if group.shadowing is None else group.shadowing.agreement.report()
    found = {}
    for tier in group.ladder:
        seen = compared.get(tier)
        if seen is None:
            found[tier] = TierReport(group.demoted(tier))
        else:
            found[tier] = TierReport(
                seen.demoted, seen.num_samples, seen.share, seen.first_divergence, seen.logprob_gap
            )
    return found
