"""Which engine answers for a model's name: the door to routing. It knows neither HTTP nor how replicas are chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from llm_inference.engine.base import Engine
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.routed_engine import RoutedEngine
from llm_inference.gateway.routing.table import RoutingTable, Target
from llm_inference.gateway.routing.wish import Wish


class Router:
    """Holds one immutable table, which may be replaced: requests keep the one that they began with."""

    def __init__(self, table: RoutingTable) -> None:
        self.table = table

    @classmethod
    def of_engines(cls, engines: Mapping[str, Engine], aliases: Mapping[str, str] | None = None) -> Router:
        """One engine for each name."""
        return cls(RoutingTable.of_engines(engines, aliases))

    def replace(self, table: RoutingTable) -> RoutingTable:
        """From now on `table` holds; the old one comes back, to be closed when its last request is over."""
        old, self.table = self.table, table
        return old

    def find(self, name: str | None) -> Target:
        """What `name` stands for. Raises like `RoutingTable.find`."""
        return self.table.find(name)

    def route(self, target: Target, wish: Wish) -> Engine:
        """An engine for one request: the only one there is, or one that chooses when it is asked to run.

        Raises `InvalidRequestError` and `PermissionDeniedError` for a tier that cannot be had.
        """
        only = target.group.only
        if only is not None and wish.plain:
            if wish.diary is not None:
                wish.diary.replica = only.id
            return only.engine
        return RoutedEngine(self.table, target, wish)

    def resolve(self, name: str | None) -> tuple[str, Engine]:
        """The served name, and its engine for a request that wishes nothing. Raises like `find`."""
        target = self.find(name)
        return target.group.name, self.route(target, Wish())

    def items(self) -> Iterator[tuple[str, Engine]]:
        """Every served name once, with an engine that stands for all its replicas."""
        return ((group.name, self.route(Target(group), Wish())) for group in self.table.groups.values())

    def replicas(self) -> Iterator[Replica]:
        """Every started engine behind the names."""
        return self.table.replicas()

    async def close(self) -> None:
        """End what runs beside the requests: copies and comparisons. Engines belong to whoever started them."""
        await asyncio.gather(*(group.close() for group in self.table.groups.values()))

    def __len__(self) -> int:
        return len(self.table.groups)
