"""The keeper of the engines: which there are; plans them, starts them, replaces and stops them.

One per server, in the process that owns the engines; every gateway process has a desk (`desks.py`). Loading and
unloading one of them is `loader.py`, reloading the configuration `reload.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count
from pathlib import Path

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import InvalidRequestError, NotReadyError
from llm_inference.gateway.admin.fleet import Action, FleetReport
from llm_inference.serve.desk import Post
from llm_inference.serve.desks import DeskLike, Desks
from llm_inference.serve.kept import Kept
from llm_inference.serve.loader import Loader
from llm_inference.serve.memory_budget import MemoryBudget
from llm_inference.serve.routing import replica_configs
from llm_inference.telemetry.metrics.machine import Machine

logger = logging.getLogger(__name__)


class Keeper:
    """`config`: as it is served. `begin` before the desks come, `run` while they are there, `close` at the end."""

    def __init__(self, config: ServerConfig, context: EngineContext) -> None:
        self.config = config
        #: Those that run, by replica id; changed in place.
        self.engines: dict[str, Engine] = {}
        self.kept: dict[str, Kept] = {}
        #: Held while the configuration changes, and while a desk comes.
        self.changing = asyncio.Lock()
        self.desks = Desks()
        self._context = context
        self._known: dict[str, Kept] = {}  # by run directory, those that come and go included
        self._budget = MemoryBudget(config.loading.memory_budget, config.loading.max_wait_s)
        self._loader = Loader(config, self.desks, self._budget, lambda: self.kept, self.engines)
        self._machine = Machine()
        self._rooms = count()

    # --- the whole

    async def begin(self) -> None:
        """Plan all, then start what is not lazy, in order; all or none. Raises `StartupError`."""
        fresh = await self.plan(self.config, without=())
        try:
            await self.start(fresh, warm=False)
        except BaseException:
            await self.stop(fresh, 0)
            raise
        self.kept = {one.replica: one for one in fresh}
        self.engines.update({one.replica: one.engine for one in fresh if one.running})

    async def close(self, grace_s: float) -> None:
        """Loads that run are given up."""
        everyone = list(self._known.values())
        await self._loader.give_up(everyone)
        await self.stop(everyone, grace_s)
        self.engines.clear()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Meanwhile idle models are unloaded."""
        watching = asyncio.create_task(self._loader.watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def join(self, desk: DeskLike, *, prepare: bool = True) -> tuple[ServerConfig, list[Post]]:
        """Another gateway process: what it serves. `prepare`: it is told so here."""
        async with self.changing:
            posts = self.posts()
            self.desks.add(desk)
            if prepare:
                await desk.prepare(self.config, posts)
                await desk.commit()
            return self.config, posts

    def posts(self) -> list[Post]:
        return [one.post() for one in self.kept.values()]

    def planned(self, run_dir: str) -> Engine:
        """The engine of that run directory, as it was planned last."""
        return self._known[run_dir].engine

    # --- engines by the dozen, for the beginning and for reloading

    async def plan(self, config: ServerConfig, *, without: Iterable[str]) -> list[Kept]:
        """The replicas of `config` that are not among `without`, planned. Raises `StartupError`."""
        running = frozenset(without)
        fresh: list[Kept] = []
        room = self._new_room()
        for index, entry in enumerate(config.models):
            models = replica_configs(entry)
            for number, (replica, model) in enumerate(models.items()):
                if replica in running:
                    continue
                name = f"model-{index}" if len(models) == 1 else f"model-{index}-{number}"
                fresh.append(Kept(replica, model, entry, room / name, len(models), self._context))
        try:
            for one in fresh:
                await one.plan()
        except BaseException:
            if room != self._context.run_dir:
                shutil.rmtree(room, ignore_errors=True)
            raise
        self._known.update({one.key: one for one in fresh})
        return fresh

    async def start(self, some: Iterable[Kept], *, warm: bool) -> None:
        """Those that are not lazy, in order. Raises `StartupError`; whoever asked stops the rest."""
        for one in some:
            await self._loader.start(one, warm=warm)

    async def stop(self, some: Iterable[Kept], grace_s: float) -> None:
        these = list(some)
        ends = await asyncio.gather(*(one.stop(grace_s) for one in these), return_exceptions=True)
        for one, end in zip(these, ends, strict=True):
            self._forget(one)
            if isinstance(end, Exception):
                logger.error("%s did not stop as it should: %s", one.replica, end)

    def replace(self, kept: dict[str, Kept]) -> list[Kept]:
        """From now on these; gives those that are no longer among them, for `retire`."""
        gone = [one for one in self.kept.values() if kept.get(one.replica) is not one]
        self.kept = kept
        for one in kept.values():
            self._budget.correct(one.key, one.entry.memory or 0)
        self.engines.clear()
        self.engines.update({one.replica: one.engine for one in kept.values() if one.running})
        return gone

    async def retire(self, gone: Sequence[Kept], grace_s: float) -> None:
        """Let what they run finish, then stop them."""
        await self.desks.each(lambda desk: desk.retire())
        await asyncio.gather(*(self._end(one, grace_s) for one in gone))

    # --- one engine

    async def wake(self, run_dir: str) -> None:
        """A request needs it. Raises `NotReadyError` where it cannot be had now, with the reason."""
        one = self._known.get(run_dir)
        if one is None:
            raise NotReadyError(
                "The model is no longer served; retry later.", code="model_unavailable", retry_after_s=5.0
            )
        await self._loader.wake(one)

    async def load(self, one: Kept) -> None:
        """Whoever asks and however often. Raises `NotReadyError`."""
        await self._loader.load(one)

    async def act(self, action: Action, replicas: Sequence[str]) -> None:
        """See `Fleet`. All at once: replicas that must not be away together are named one by one."""
        loader = self._loader
        doing = {"load": loader.load, "unload": loader.unload, "restart": loader.restart, "drain": loader.drain}[action]
        for name in replicas:
            if name not in self.kept:
                raise InvalidRequestError(
                    f"No replica is called {name!r}; there are {', '.join(self.kept)}.", param="replica"
                )
            logger.info("an operator asks to %s %s", action, name)
        ends = await asyncio.gather(*(doing(self.kept[name]) for name in replicas), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def report(self) -> FleetReport:
        workers = sorted(await self.desks.reports(), key=lambda one: one.worker)
        return FleetReport({name: one.report(self._machine) for name, one in self.kept.items()}, workers)

    # --- inside

    async def _end(self, one: Kept, grace_s: float) -> None:
        await self._loader.retire(one, grace_s)
        self._forget(one)

    def _forget(self, one: Kept) -> None:
        self._budget.give_back(one.key)
        self._known.pop(one.key, None)
        shutil.rmtree(one.run_dir, ignore_errors=True)
        if one.run_dir.parent != self._context.run_dir:
            with contextlib.suppress(OSError):  # others are still in there
                one.run_dir.parent.rmdir()

    def _new_room(self) -> Path:
        """A directory for the run directories of one configuration."""
        number = next(self._rooms)
        return self._context.run_dir if number == 0 else self._context.run_dir / f"reload-{number}"
