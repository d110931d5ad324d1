"""From configuration and started engines to the table that requests are routed by."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from llm_inference.config.deployments import by_name
from llm_inference.config.routing import RoutingConfig
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.gateway.routing.agreement import AgreementRules
from llm_inference.gateway.routing.breaker import Ejection
from llm_inference.gateway.routing.deployment import Deployment, Group, Rules
from llm_inference.gateway.routing.policy import make_policy
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.table import RoutingTable

#: Keys of an entry that are the gateway's: no engine is told of them.
_OURS = frozenset(
    {"replicas", "version", "tier", "weight", "shadow", "routing", "limits", "price", "lazy", "idle_unload_s", "memory"}
)
#: Precisions by what they keep of a model's answers, best first. What is not here, and "auto", is as good as 16 bits.
_RANKS = {"float32": 0, "bfloat16": 1, "float16": 1, "fp8": 2, "int8": 2, "awq": 3, "gptq": 3, "int4": 3}
_DEFAULT_RANK = 1


def replica_ids(model: ModelConfig) -> tuple[str, ...]:
    """What the entry's replicas are called: as the entry, and numbered where there are several."""
    urls = model.url.split() if model.url is not None else []
    count = max(model.replicas, len(urls))
    if count == 1:
        return (model.deployment,)
    return tuple(f"{model.deployment}#{number}" for number in range(count))


def replica_configs(model: ModelConfig) -> dict[str, ModelConfig]:
    """By replica id: the entry as the engine of one replica is told it."""
    ids = replica_ids(model)
    if len(ids) == 1 and not model.model_fields_set & _OURS:
        return {ids[0]: model}
    said = model.model_dump(exclude_unset=True, exclude=set(_OURS))
    urls: Sequence[str | None] = model.url.split() if model.url is not None else [None] * len(ids)
    return {
        replica_id: ModelConfig.model_validate(said if url is None else {**said, "url": url})
        for replica_id, url in zip(ids, urls, strict=True)
    }


def routing_table(
    models: Sequence[ModelConfig],
    engines: Mapping[str, Engine],
    *,
    clock: Callable[[], float] = time.monotonic,
    rng: random.Random | None = None,
) -> RoutingTable:
    """`engines`: by replica id, of every entry. The configuration has been checked."""
    groups = [_group(name, entries, engines, clock, rng) for name, entries in by_name(models).items()]
    return RoutingTable(groups, {alias: model.name for model in models for alias in model.aliases})


def _group(
    name: str,
    entries: Sequence[ModelConfig],
    engines: Mapping[str, Engine],
    clock: Callable[[], float],
    rng: random.Random | None,
) -> Group:
    routing = next((entry.routing for entry in entries if entry.routing is not None), RoutingConfig())
    ejection = Ejection(routing.eject_after, routing.eject_s, routing.max_eject_s)
    deployments = [
        Deployment(
            tuple(
                Replica(one, engines[one], max_in_flight=routing.max_in_flight, ejection=ejection, clock=clock)
                for one in replica_ids(entry)
            ),
            version=entry.version or "",
            tier=entry.tier or "",
            weight=entry.weight,
            shadow=entry.shadow,
            greedy=entry.generation.temperature == 0,
        )
        for entry in entries
    ]
    agreement = routing.agreement
    return Group(
        name,
        deployments,
        ladder=routing.tiers or ladder(entries),
        policy=make_policy(routing.policy, routing.load_factor),
        rules=Rules(
            prefix_bytes=routing.prefix_bytes,
            retry=routing.retry,
            attempt_timeout_s=routing.attempt_timeout_s,
            fallbacks=tuple(routing.fallbacks),
            default_tier=routing.default_tier or "",
            spill_over=routing.spill_over,
            spill_to=tuple(routing.spill_to.items()),
        ),
        agreement=None if agreement is None else AgreementRules(**agreement.model_dump()),
        rng=rng,
    )


def ladder(entries: Sequence[ModelConfig]) -> tuple[str, ...]:
    """The tiers by the precision of their entries, best first; equals in the order given."""
    ranks: dict[str, int] = {}
    for entry in entries:
        if entry.tier is not None:
            ranks[entry.tier] = min(ranks.get(entry.tier, 99), _rank(entry))
    return tuple(sorted(ranks, key=lambda tier: ranks[tier]))


def _rank(entry: ModelConfig) -> int:
    return _RANKS.get(entry.resolved_quantization or entry.resolved_dtype, _DEFAULT_RANK)
