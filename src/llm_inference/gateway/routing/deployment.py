"""What stands behind a name: deployments (a version, a tier, its replicas), and how they share the name's requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_inference.gateway.routing.agreement import Agreement, AgreementRules
from llm_inference.gateway.routing.mirror import Mirror
from llm_inference.gateway.routing.policy import LeastTokens, Policy
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.shadowing import Shadowing


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """One entry of the configuration. Versions share requests by `weight`.

    `shadow`: the share of requests of which it gets a copy; above 0 it takes no others, unless they name its version.
    """

    replicas: tuple[Replica, ...]
    version: str = ""
    tier: str = ""
    weight: float = 1.0
    shadow: float = 0.0
    greedy: bool = False  # takes the likeliest token where a request says no temperature


@dataclass(frozen=True, slots=True)
class Rules:
    """How a name's requests are routed; see `config/routing.py` for each."""

    prefix_bytes: int = 1024
    retry: bool = True
    attempt_timeout_s: float | None = None
    fallbacks: tuple[str, ...] = ()
    default_tier: str = ""  # "": the best
    spill_over: Literal["never", "default", "always"] = "default"
    spill_to: tuple[tuple[str, str], ...] = ()


class Group:
    """Everything behind one name. `ladder` are its tiers, best first; empty: it has none.

    `agreement`: they are compared with the best one. `rng` draws versions and samples.
    """

    def __init__(
        self,
        name: str,
        deployments: Sequence[Deployment],
        *,
        ladder: Sequence[str] = (),
        policy: Policy | None = None,
        rules: Rules | None = None,
        agreement: AgreementRules | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.deployments = tuple(deployments)
        self.ladder = tuple(ladder)
        self.policy: Policy = policy or LeastTokens()
        self.rules = rules or Rules()
        self.rng = rng or random.Random()
        self.mirrors = tuple(Mirror(one.replicas, one.shadow, self.rng) for one in self.deployments if one.shadow > 0)
        self.shadowing: Shadowing | None = None
        if agreement is not None and len(self.ladder) > 1:
            by_tier = {(one.version, one.tier): one.replicas for one in self.deployments if not one.shadow}
            self.shadowing = Shadowing(Agreement(agreement, self.ladder[0]), by_tier, self.rng)
        #: The one replica, where there is nothing to choose: requests go straight to its engine.
        self.only: Replica | None = None
        replicas = self.replicas
        if len(replicas) == 1 and not (self.ladder or self.rules.fallbacks or self.rules.attempt_timeout_s):
            self.only = replicas[0]

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return tuple(replica for deployment in self.deployments for replica in deployment.replicas)

    @property
    def versions(self) -> tuple[str, ...]:
        """Each once, in the order given."""
        return tuple(dict.fromkeys(one.version for one in self.deployments if one.version))

    def demoted(self, tier: str) -> bool:
        """Its answers differ too much from the best tier's."""
        return self.shadowing is not None and self.shadowing.agreement.demoted(tier)

    def restore(self, tier: str) -> bool:
        """An operator's word that a demoted tier is well. False: it was not demoted."""
        return self.shadowing is not None and self.shadowing.agreement.restore(tier)

    async def close(self) -> None:
        """End what runs beside the requests. Engines are not its own."""
        for mirror in self.mirrors:
            await mirror.close()
        if self.shadowing is not None:
            await self.shadowing.close()

    def lower(self, tier: str) -> tuple[str, ...]:
        """The tiers that a full `tier` spills over to, nearest first."""
        configured = dict(self.rules.spill_to)
        found = [tier]
        while True:
            below = self.ladder[self.ladder.index(found[-1]) + 1 :]
            following = configured.get(found[-1], below[0] if below else "")
            if not following or following in found:
                return tuple(found[1:])
            found.append(following)


def choose_version(deployments: Sequence[Deployment], point: float) -> Deployment:
    """By weight; `point` is in [0, 1): a random number, or a session's own. If all weights are 0, the first."""
    total = sum(one.weight for one in deployments)
    left = point * total
    for one in deployments:
        left -= one.weight
        if left < 0:
            return one
    return next((one for one in reversed(deployments) if one.weight > 0), deployments[0])
