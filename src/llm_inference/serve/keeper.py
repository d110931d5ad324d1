"""The keeper of the engines: plans and starts them, loads them when a request needs them, unloads, drains, restarts.

    request ─► Held ─ wake ─► Keeper.wake ─► room in the budget? ─► plan, start, warm ─► every desk: attach ─► go on
                                 │                └ least recently used, nothing running: unload
                                 └ one load for all who ask; all are told of its failure

One per server, in the process that owns the engines; every gateway process has a desk (`desks.py`). Reloading the
configuration is `reload.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.held import HeldState
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.supervisor import in_public
from llm_inference.errors import InvalidRequestError, LLMInferenceError, NotReadyError
from llm_inference.gateway.admin.fleet import Action, FleetReport, WorkerReport
from llm_inference.serve.desk import Post
from llm_inference.serve.desks import DeskLike, Desks
from llm_inference.serve.idle_models import IdleModels
from llm_inference.serve.kept import Kept
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
        self._context = context
        self.desks = Desks()
        self._known: dict[str, Kept] = {}  # by run directory, those that come and go included
        self._budget = MemoryBudget(config.loading.memory_budget, config.loading.max_wait_s)
        self._idle = IdleModels(lambda: self.kept, self._reports, self._unload_if_idle)
        self._machine = Machine()
        self._rooms = count()
        self._unloading: set[asyncio.Task[bool]] = set()

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
        loads = [one.loading for one in everyone if one.loading is not None]
        for one in everyone:
            self._give_up_load(one)
        await asyncio.gather(*loads, *self._unloading, return_exceptions=True)
        await self.stop(everyone, grace_s)
        self.engines.clear()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Meanwhile idle models are unloaded."""
        watching = asyncio.create_task(self._idle.watch())
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
            if one.entry.lazy:
                one.put_off()
                continue
            await self._budget.claim(one.key, one.entry.memory or 0, self._idle.make_room)
            await one.start(warm=warm)
            one.become("loaded")

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
        if one is None or one.barred:
            what = "no longer served" if one is None else f"{one.state}: {one.reason}"
            raise NotReadyError(f"The model is {what}; retry later.", code="model_unavailable", retry_after_s=5.0)
        left = one.retry_at - time.monotonic()
        if left > 0 and one.state == "unloaded":
            raise self._unloadable(one, left)
        await self.load(one)

    async def load(self, one: Kept) -> None:
        """Whoever asks and however often. Raises `NotReadyError`."""
        await self._once(one, self._load)

    async def _once(self, one: Kept, work: Callable[[Kept], Coroutine[Any, Any, None]]) -> None:
        """`work`, unless a load or a restart runs already: then wait for that one."""
        if one.loading is None or one.loading.done():
            one.loading = asyncio.create_task(work(one), name=f"load {one.replica}")
            one.given_up, one.restarting = False, work == self._restart
        task = one.loading
        await asyncio.wait({task})  # who asked may leave; the load goes on
        if task.cancelled():
            raise NotReadyError(f"Loading {one.replica} was given up; retry later.", retry_after_s=5.0)
        task.result()

    async def unload(self, one: Kept) -> None:
        """When what runs is over, at most `api.shutdown_grace_s`. A lazy one comes back with the next request."""
        self._give_up_load(one)
        async with one.lock:
            if one.running:
                await self._tell(one, "draining", "it is being unloaded", barred=True)
                await self._take_down(one, self.config.api.shutdown_grace_s)
            elif one.entry.lazy:
                return
            self._budget.give_back(one.key)
            await self._tell(
                one, "unloaded", "" if one.entry.lazy else "unloaded by an operator", barred=not one.entry.lazy
            )
        logger.info("unloaded %s", one.replica)

    async def drain(self, one: Kept) -> None:
        """No request any more; it stays loaded. Returns when nothing runs, or `api.shutdown_grace_s` is over."""
        reason = "drained by an operator; load it to have it back"
        async with one.lock:
            await self._tell(one, "draining" if one.running else "unloaded", reason, barred=True)
        # Meanwhile it may be wanted back.
        await self.desks.each(lambda desk: desk.drained(one.key, self.config.api.shutdown_grace_s))

    async def restart(self, one: Kept) -> None:
        """Drained, stopped, loaded; requests that come meanwhile wait. Raises `NotReadyError`."""
        while one.loading is not None and not one.loading.done() and (one.given_up or not one.restarting):
            self._give_up_load(one)
            await asyncio.wait({one.loading})
        await self._once(one, self._restart)

    async def act(self, action: Action, replicas: Sequence[str]) -> None:
        """See `Fleet`. All at once: replicas that must not be away together are named one by one."""
        doing = {"load": self.load, "unload": self.unload, "restart": self.restart, "drain": self.drain}[action]
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
        workers = sorted(await self._reports(), key=lambda one: one.worker)
        return FleetReport({name: one.report(self._machine) for name, one in self.kept.items()}, workers)

    # --- inside

    async def _reports(self) -> list[WorkerReport]:
        return await self.desks.each(lambda desk: desk.report())

    async def _load(self, one: Kept) -> None:
        async with one.lock:
            if one.state == "loaded":
                return
            if one.running:  # drained, and wanted back
                one.become("loaded")
                await self.desks.each(lambda desk: desk.attach(one.key))
                return
            await self._bring_up(one)

    async def _restart(self, one: Kept) -> None:
        async with one.lock:
            await self._tell(one, "loading", "")
            # Whoever gives it up here lets what runs finish, too.
            await self.desks.each(lambda desk: desk.drained(one.key, self.config.api.shutdown_grace_s))
            await self._bring_up(one)

    async def _bring_up(self, one: Kept) -> None:
        begun = time.monotonic()
        try:
            await self._tell(one, "loading", "")
            await self._take_down(one, 0)
            logger.info("loading %s", one.replica)
            await self._budget.take(one.key, one.entry.memory or 0, self._idle.make_room)
            await one.start(warm=True)
            one.become("loaded")
            one.retry_at = 0.0
            if self.kept.get(one.replica) is one:
                self.engines[one.replica] = one.engine
            await self.desks.each(lambda desk: desk.attach(one.key))
        except asyncio.CancelledError:
            await self._undo(one)
            await self._tell(one, "unloaded", "")
            raise
        except Exception as error:
            await self._undo(one)
            said = error.message if isinstance(error, LLMInferenceError) else repr(error)
            logger.error("%s could not be loaded: %s", one.replica, said)
            if isinstance(error, NotReadyError) and error.public_code == "memory_budget":
                await self._tell(one, "unloaded", in_public(said))
                raise
            one.retry_at = time.monotonic() + self.config.loading.retry_s
            await self._tell(one, "unloaded", f"it could not be loaded: {in_public(said)}")
            raise self._unloadable(one, self.config.loading.retry_s) from error
        logger.info("loaded %s in %.1f s", one.replica, time.monotonic() - begun)

    async def _undo(self, one: Kept) -> None:
        self.engines.pop(one.replica, None)
        with contextlib.suppress(Exception):
            await self.desks.each(lambda desk: desk.detach(one.key))
        await one.stop(0)
        self._budget.give_back(one.key)

    async def _take_down(self, one: Kept, grace_s: float) -> None:
        await self.desks.each(lambda desk: desk.drained(one.key, grace_s))
        await self.desks.each(lambda desk: desk.detach(one.key))
        if self.kept.get(one.replica) is one:
            self.engines.pop(one.replica, None)
        await one.stop(0)

    async def _end(self, one: Kept, grace_s: float) -> None:
        self._give_up_load(one)
        async with one.lock:
            await self.desks.each(lambda desk: desk.drained(one.key, grace_s))
            await self._tell(one, "unloaded", "the configuration has no such model any more", barred=True)
            await self._take_down(one, 0)
            await self.desks.each(lambda desk: desk.forget(one.key))
        self._forget(one)

    def _forget(self, one: Kept) -> None:
        self._budget.give_back(one.key)
        self._known.pop(one.key, None)
        shutil.rmtree(one.run_dir, ignore_errors=True)
        if one.run_dir.parent != self._context.run_dir:
            with contextlib.suppress(OSError):  # others are still in there
                one.run_dir.parent.rmdir()

    async def _tell(self, one: Kept, state: HeldState, reason: str, *, barred: bool = False) -> None:
        one.become(state, reason, barred=barred)
        await self.desks.each(lambda desk: desk.mark(one.key, state, reason, barred))

    async def _unload_if_idle(self, one: Kept, for_s: float) -> bool:
        """To its end or not at all, also when the load that wanted the memory is given up."""
        if one.state != "loaded":
            return False
        self._unloading.add(task := asyncio.create_task(self._unload_idle(one, for_s)))
        task.add_done_callback(self._unloading.discard)
        return await asyncio.shield(task)

    async def _unload_idle(self, one: Kept, for_s: float) -> bool:
        if one.lock.locked():  # never waited for: whoever has it may wait for memory that we are to make
            return False
        async with one.lock:
            if one.state != "loaded":
                return False
            if not all(await self.desks.each(lambda desk: desk.shut_if_idle(one.key, for_s))):
                await self.desks.each(lambda desk: desk.attach(one.key))  # somebody came: it stays
                return False
            one.become("draining", "it is being unloaded")
            await self._take_down(one, 0)
            self._budget.give_back(one.key)
            await self._tell(one, "unloaded", "")
        logger.info("unloaded %s, which nobody used", one.replica)
        return True

    def _give_up_load(self, one: Kept) -> None:
        # Once: a second time would cut short how it is undone.
        if one.loading is not None and not one.loading.done() and not one.given_up:
            one.given_up = True
            one.loading.cancel()

    def _unloadable(self, one: Kept, left_s: float) -> NotReadyError:
        return NotReadyError(
            f"The model {one.entry.name!r} cannot be served: {one.reason}. "
            f"It is tried again in {max(left_s, 0.1):.3g} s.",
            code="model_load_failed",
            retry_after_s=max(left_s, 1.0),
        )

    def _new_room(self) -> Path:
        """A directory for the run directories of one configuration."""
        number = next(self._rooms)
        return self._context.run_dir if number == 0 else self._context.run_dir / f"reload-{number}"
