"""The names that are served, as one immutable table: what a name, an alias or `name@version` stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from llm_inference.engine.base import Engine
from llm_inference.errors import InvalidRequestError, ModelNotFoundError
from llm_inference.gateway.routing.deployment import Deployment, Group
from llm_inference.gateway.routing.replica import Replica


@dataclass(frozen=True, slots=True)
class Target:
    """What a request's `model` means. `version`: the one that it names; None: whichever the weights give."""

    group: Group
    version: str | None = None

    @property
    def listed(self) -> str:
        return self.group.name if self.version is None else f"{self.group.name}@{self.version}"


class RoutingTable:
    """Groups in the order given. The first is nothing special; with exactly one, clients may leave its name out.

    `aliases` are further names for the same groups; answers, metrics and listings say the served name.
    """

    def __init__(self, groups: Iterable[Group], aliases: Mapping[str, str] | None = None) -> None:
        self.groups = {group.name: group for group in groups}
        self.targets_by_name = {name: Target(group) for name, group in self.groups.items()}
        for group in self.groups.values():
            for version in group.versions:
                target = Target(group, version)
                self.targets_by_name.setdefault(target.listed, target)
        self._names = tuple(self.targets_by_name)
        for alias, name in (aliases or {}).items():
            self.targets_by_name[alias] = self.targets_by_name[name]

    @classmethod
    def of_engines(cls, engines: Mapping[str, Engine], aliases: Mapping[str, str] | None = None) -> RoutingTable:
        """One engine for each name."""
        groups = (Group(name, [Deployment((Replica(name, engine),))]) for name, engine in engines.items())
        return cls(groups, aliases)

    def find(self, name: str | None) -> Target:
        """Raises `ModelNotFoundError` for a name that is not served, `InvalidRequestError` for none of several."""
        if name is None:
            if len(self.groups) == 1:
                return next(iter(self.targets_by_name.values()))
            raise InvalidRequestError(f"model is required: one of {self._listing()}.", param="model")
        target = self.targets_by_name.get(name)
        if target is None:
            near = difflib.get_close_matches(name[:200], self.targets_by_name, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Served here: {self._listing()}."
            raise ModelNotFoundError(f"The model {name[:200]!r} is not served here. {hint}", param="model")
        return target

    def targets(self) -> Iterator[Target]:
        """Every name, and every `name@version` after them."""
        return (self.targets_by_name[name] for name in self._names)

    def replicas(self) -> Iterator[Replica]:
        return (replica for group in self.groups.values() for replica in group.replicas)

    def _listing(self) -> str:
        return ", ".join(repr(name) for name in self.groups) or "nothing"
