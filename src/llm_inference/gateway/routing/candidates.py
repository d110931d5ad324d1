"""The replicas that one prompt may go to, one after the other: each is chosen when the one before has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llm_inference.engine.base import Engine
from llm_inference.errors import NotReadyError
from llm_inference.gateway.routing.deployment import Deployment, Group
from llm_inference.gateway.routing.replica import Replica


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, and as part of what it was chosen."""

    group: Group
    deployment: Deployment
    replica: Replica


@dataclass(frozen=True, slots=True)
class Rungs:
    """The deployments of a name that may serve a request.

    `chosen`: the version of each tier, in the order of tiers; one that is full passes the request on to the next.
    `others`: further versions of the first tier, for when none of the chosen one's replicas is well.
    """

    group: Group
    chosen: Sequence[Deployment]
    others: Sequence[Deployment] = ()


@dataclass(slots=True)
class Candidates:
    """Iterate it: at most one replica, one more if `retry` says so, and one of each fallback.

    `fits`: whether an engine can do what is asked, where it is not of the first deployment, which has been checked.
    `fallbacks` gives the rungs of other names, when it comes to that.
    """

    rungs: Rungs
    key: bytes
    num_tokens: int
    fits: Callable[[Engine], bool] | None = None
    fallbacks: Callable[[], Iterator[Rungs]] | None = None

    def __iter__(self) -> Iterator[Choice]:
        group = self.rungs.group
        tried: set[Replica] = set()
        for _ in range(2 if group.rules.retry else 1):
            choice = self._pick(self.rungs, tried)
            if choice is None:
                break
            tried.add(choice.replica)
            yield choice
        for rungs in self.fallbacks() if self.fallbacks is not None else ():
            choice = self._pick(rungs, tried, checked=False)
            if choice is not None:
                tried.add(choice.replica)
                yield choice
        if not tried:
            # All are ejected: the one whose time is up first is better than none.
            first = self.rungs.chosen[0]
            replica = min(first.replicas, key=lambda one: (not one.in_service, one.breaker.ejected_until))
            yield Choice(group, first, replica)

    def nobody(self) -> NotReadyError:
        """The error for when none of them could even be asked."""
        return NotReadyError(
            f"No replica of {self.rungs.group.name!r} can answer this request now; retry later.", retry_after_s=2.0
        )

    def _pick(self, rungs: Rungs, tried: set[Replica], *, checked: bool = True) -> Choice | None:
        """A replica with room, of the first deployment that has one; else, of the first where one is well."""
        waiting: Choice | None = None
        first = rungs.chosen[0]
        for deployment in (first, *rungs.others, *rungs.chosen[1:]):
            if waiting is not None and deployment in rungs.others:
                continue  # that a version is full is no reason to take another one
            well = [one for one in deployment.replicas if one not in tried and one.available]
            if not (checked and deployment is first):
                well = [one for one in well if self.fits is None or self.fits(one.engine)]
            if not well:
                continue
            free = [one for one in well if not one.saturated]
            if free:
                # One more is loaded only when those that are have no room.
                return self._choose(rungs.group, deployment, [one for one in free if one.loaded] or free)
            if waiting is None:
                waiting = self._choose(rungs.group, deployment, well)
        return waiting

    def _choose(self, group: Group, deployment: Deployment, replicas: list[Replica]) -> Choice:
        if len(replicas) == 1:
            return Choice(group, deployment, replicas[0])
        return Choice(group, deployment, group.policy.choose(replicas, self.num_tokens, self.key))
