"""Groups of fake engines for the tests of routing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.gateway.routing.deployment import Deployment, Group
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.table import RoutingTable


class Clock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Diary:
    def __init__(self) -> None:
        self.replica = ""
        self.tier = ""


def replicas(*names: str, script: FakeScript | None = None, **keys: Any) -> tuple[Replica, ...]:
    return tuple(Replica(name, FakeEngine("chat", script=script), **keys) for name in names)


def group(*deployments: Deployment, name: str = "chat", seed: int = 1, **keys: Any) -> Group:
    return Group(name, deployments, rng=random.Random(seed), **keys)


def router(*groups: Group) -> Router:
    return Router(RoutingTable(groups))


def fake(replica: Replica) -> FakeEngine:
    assert isinstance(replica.engine, FakeEngine)
    return replica.engine


def counts(members: Sequence[Replica]) -> list[int]:
    """Requests that each engine was given."""
    return [len(fake(one).requests) for one in members]
