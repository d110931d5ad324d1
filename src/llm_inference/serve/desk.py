"""One gateway process as the keeper of the engines sees it: which replicas it serves, and the door of each.

    prepare ──► commit        a new table, beside the old one until then; or rollback, and nothing has changed
    attach, mark, shut, …     one replica's engine comes and goes

The keeper may be in this process or its parent (`workforce.py`); `Source` says how a started engine is reached. A
replica's engine is known by its run directory, which no two engines share; the id of a replica may be given again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.held import Held, HeldState, hold
from llm_inference.gateway.admin.fleet import ReplicaLoad, WorkerReport
from llm_inference.gateway.admission.admission import Admission
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.table import RoutingTable
from llm_inference.serve.routing import replica_configs, routing_table


class Post(msgspec.Struct, frozen=True):
    """A replica as a gateway process is told of it."""

    replica: str
    run_dir: str
    num_siblings: int
    state: HeldState
    reason: str = ""
    barred: bool = False
    lazy: bool = False


class Source(Protocol):
    """Where engines come from in this process."""

    async def plan(self, model: ModelConfig, post: Post) -> Engine:
        """The engine as it was planned, not started here. Raises `StartupError`."""
        ...

    async def start(self, engine: Engine) -> None:
        """Its owner has started it. Raises `StartupError`."""
        ...

    async def stop(self, engine: Engine) -> None: ...


@dataclass(slots=True)
class _Place:
    post: Post
    model: ModelConfig
    held: Held
    attached: bool = False


@dataclass(frozen=True, slots=True)
class _Prepared:
    table: RoutingTable
    fresh: list[_Place]
    posts: tuple[Post, ...]


class Desk:
    """`wake`: asks the keeper to load the engine with this run directory; see `Held`."""

    def __init__(
        self, source: Source, wake: Callable[[str], Awaitable[None]], *, max_wait_s: float, worker: int = 0
    ) -> None:
        self._source = source
        self._wake = wake
        self._max_wait_s = max_wait_s
        self._worker = worker
        self._places: dict[str, _Place] = {}
        self._next: _Prepared | None = None
        self._old: list[RoutingTable] = []
        self.router = Router(RoutingTable(()))
        self.admission: Admission | None = None  # where there is one, its queue is reported

    @property
    def engines(self) -> dict[str, Engine]:
        """What is served now, by replica id."""
        return {replica.id: replica.engine for replica in self.router.replicas()}

    # --- a whole configuration

    async def prepare(self, config: ServerConfig, posts: Sequence[Post]) -> None:
        """Attach what is new and make its table, beside what is served. Raises `StartupError`; nothing is left then."""
        models = {one: model for entry in config.models for one, model in replica_configs(entry).items()}
        fresh: list[_Place] = []
        self._next = None
        try:
            for post in posts:
                if post.run_dir not in self._places:
                    fresh.append(await self._new_place(models[post.replica], post))
            places = {**self._places, **{place.post.run_dir: place for place in fresh}}
            table = routing_table(config.models, {one.replica: places[one.run_dir].held for one in posts})
            self._next = _Prepared(table, fresh, tuple(posts))
        except BaseException:
            await asyncio.gather(*map(self._drop, fresh))
            raise
        self._places = places

    async def commit(self) -> None:
        """Serve what was prepared."""
        assert self._next is not None
        ready, self._next = self._next, None
        for post in ready.posts:
            held = self._places[post.run_dir].held
            if held.lazy != post.lazy:
                held.lazy_by(self._waker(post) if post.lazy else None)
        _keep_demotions(self.router.table, ready.table)
        self._old.append(self.router.replace(ready.table))

    async def rollback(self) -> None:
        """Forget what was prepared, if anything was."""
        if self._next is None:
            return
        given_up, self._next = self._next, None
        for place in given_up.fresh:
            self._places.pop(place.post.run_dir, None)
        await asyncio.gather(*map(self._drop, given_up.fresh))

    async def retire(self) -> None:
        """End what ran beside the requests of tables that are no longer served."""
        old, self._old = self._old, []
        for table in old:
            for group in table.groups.values():
                await group.close()

    # --- one replica's engine

    async def attach(self, run_dir: str) -> None:
        """Its owner has started it: it takes requests. Raises `StartupError`."""
        place = self._places.get(run_dir)
        if place is None:
            return
        if not place.attached:
            engine = await self._source.plan(place.model, place.post)
            await self._source.start(engine)
            place.attached = True
            place.held.open(engine)
        else:
            place.held.open(place.held.engine)

    async def mark(self, run_dir: str, state: HeldState, reason: str, barred: bool) -> None:
        if (place := self._places.get(run_dir)) is not None:
            place.held.mark(state, reason, barred=barred)

    async def shut_if_idle(self, run_dir: str, for_s: float) -> bool:
        place = self._places.get(run_dir)
        return place is None or place.held.shut_if_idle(for_s)

    async def drained(self, run_dir: str, within_s: float) -> bool:
        place = self._places.get(run_dir)
        return place is None or await place.held.drained(within_s)

    async def detach(self, run_dir: str) -> None:
        """Its owner is about to stop it."""
        place = self._places.get(run_dir)
        if place is not None and place.attached:
            place.attached = False
            await self._source.stop(place.held.engine)

    async def forget(self, run_dir: str) -> None:
        """It never comes back."""
        self._places.pop(run_dir, None)

    async def report(self) -> WorkerReport:
        by_face = {id(place.held): place.held for place in self._places.values()}
        loads = {}
        for replica in self.router.replicas():
            held = by_face.get(id(replica.engine))
            if held is not None:
                loads[replica.id] = ReplicaLoad(
                    held.in_flight, replica.outstanding_tokens, held.num_requests, round(held.idle_s, 3)
                )
        door = self.admission
        return WorkerReport(
            self._worker, door.in_flight if door is not None else 0, door.num_waiting if door is not None else 0, loads
        )

    async def close(self) -> None:
        """At the end of the process."""
        for table in (*self._old, self.router.table):
            for group in table.groups.values():
                await group.close()
        await asyncio.gather(*map(self._drop, self._places.values()))
        self._places.clear()

    # --- inside

    async def _new_place(self, model: ModelConfig, post: Post) -> _Place:
        engine = await self._source.plan(model, post)
        wake = self._waker(post) if post.lazy else None
        held = hold(engine, state="unloaded", wake=wake, max_wait_s=self._max_wait_s)
        place = _Place(post, model, held)
        if post.state == "loaded":
            await self._source.start(engine)
            place.attached = True
            held.open(engine)
        else:
            held.mark(post.state, post.reason, barred=post.barred)
        return place

    def _waker(self, post: Post) -> Callable[[], Awaitable[None]]:
        return lambda: self._wake(post.run_dir)

    async def _drop(self, place: _Place) -> None:
        if place.attached:
            place.attached = False
            await self._source.stop(place.held.engine)


def _keep_demotions(old: RoutingTable, new: RoutingTable) -> None:
    """A reload is no reason to trust a tier again whose engines are the same."""
    kept = {replica.id for replica in new.replicas()} & {
        replica.id
        for replica in old.replicas()
        if any(replica.engine is one.engine for one in new.replicas() if one.id == replica.id)
    }
    for name, group in new.groups.items():
        before = old.groups.get(name)
        if before is None or before.shadowing is None or group.shadowing is None or before.ladder != group.ladder:
            continue
        same = {one.tier for one in group.deployments if all(replica.id in kept for replica in one.replicas)}
        group.shadowing.agreement.take_over(before.shadowing.agreement, same)
