"""`GET /admin/models`: every replica and tier, as routing sees them now."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.gateway.routing.deployment import Group
from llm_inference.gateway.routing.routed_engine import health_of
from llm_inference.gateway.state import gateway_of


class ReplicaReport(msgspec.Struct, frozen=True):
    """`available`: requests go there; false after failures, until it is tried again. Loads are this process's own,
    and of a model with one replica alone they are not counted."""

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
    models: list[ModelReport]


async def models(request: Request) -> Response:
    groups = gateway_of(request).router.table.groups.values()
    report = ModelsReport([ModelReport(group.name, await _replicas(group), _tiers(group)) for group in groups])
    return Response(msgspec.json.encode(report), media_type="application/json")


async def _replicas(group: Group) -> list[ReplicaReport]:
    pairs = [(entry, replica) for entry in group.deployments for replica in entry.replicas]
    states = await asyncio.gather(*(health_of(replica) for _, replica in pairs))
    return [
        ReplicaReport(
            replica.id,
            replica.engine.info.engine,
            entry.version,
            entry.tier,
            entry.weight,
            entry.shadow,
            state.ready,
            replica.available,
            replica.saturated,
            replica.in_flight,
            replica.outstanding_tokens,
            replica.num_requests,
            replica.num_failures,
            replica.breaker.num_ejections,
            state.reason,
        )
        for (entry, replica), state in zip(pairs, states, strict=True)
    ]


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
