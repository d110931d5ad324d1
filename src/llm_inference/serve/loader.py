"""One engine between its states: loaded, drained, unloaded, restarted; one change at a time, and every desk is told.

    request ─► Held ─ wake ─► Loader.wake ─► room in the budget? ─► plan, start, warm ─► every desk: attach ─► go on
                                 │                └ least recently used, nothing running: unload
                                 └ one load for all who ask; all are told of its failure

Which engines there are is the keeper's (`keeper.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from llm_inference.config.schema import ServerConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.held import HeldState
from llm_inference.engine.supervisor import in_public
from llm_inference.errors import LLMInferenceError, NotReadyError
from llm_inference.serve.desks import Desks
from llm_inference.serve.idle_models import IdleModels
from llm_inference.serve.kept import Kept
from llm_inference.serve.memory_budget import MemoryBudget

logger = logging.getLogger(__name__)


class Loader:
    """`config`: of it, what a reload leaves as it is. `kept`: the engines of this moment, by replica id.

    `engines`: those of them that run; changed here, in place.
    """

    def __init__(
        self,
        config: ServerConfig,
        desks: Desks,
        budget: MemoryBudget,
        kept: Callable[[], Mapping[str, Kept]],
        engines: dict[str, Engine],
    ) -> None:
        self._retry_s = config.loading.retry_s
        self._grace_s = config.api.shutdown_grace_s
        self._desks = desks
        self._budget = budget
        self._kept = kept
        self._engines = engines
        self._idle = IdleModels(kept, desks.reports, self._unload_if_idle)
        self._unloading: set[asyncio.Task[bool]] = set()

    async def watch(self) -> None:
        """Until cancelled: idle models are unloaded."""
        await self._idle.watch()

    async def start(self, one: Kept, *, warm: bool) -> None:
        """Of one that no desk knows yet, and only if it is not lazy. Raises `StartupError`."""
        if one.entry.lazy:
            one.put_off()
            return
        await self._budget.claim(one.key, one.entry.memory or 0, self._idle.make_room)
        await one.start(warm=warm)
        one.become("loaded")

    async def wake(self, one: Kept) -> None:
        """A request needs it. Raises `NotReadyError` where it cannot be had now, with the reason."""
        if one.barred:
            raise NotReadyError(
                f"The model is {one.state}: {one.reason}; retry later.", code="model_unavailable", retry_after_s=5.0
            )
        left = one.retry_at - time.monotonic()
        if left > 0 and one.state == "unloaded":
            raise self._unloadable(one, left)
        await self.load(one)

    async def load(self, one: Kept) -> None:
        """Whoever asks and however often. Raises `NotReadyError`."""
        await self._once(one, self._load)

    async def unload(self, one: Kept) -> None:
        """When what runs is over, at most `api.shutdown_grace_s`. A lazy one comes back with the next request."""
        self._give_up_load(one)
        async with one.lock:
            if one.running:
                await self._tell(one, "draining", "it is being unloaded", barred=True)
                await self._take_down(one, self._grace_s)
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
        await self._desks.each(lambda desk: desk.drained(one.key, self._grace_s))

    async def restart(self, one: Kept) -> None:
        """Drained, stopped, loaded; requests that come meanwhile wait. Raises `NotReadyError`."""
        while one.loading is not None and not one.loading.done() and (one.given_up or not one.restarting):
            self._give_up_load(one)
            await asyncio.wait({one.loading})
        await self._once(one, self._restart)

    async def retire(self, one: Kept, grace_s: float) -> None:
        """When what runs is over, for good: every desk forgets it."""
        self._give_up_load(one)
        async with one.lock:
            await self._desks.each(lambda desk: desk.drained(one.key, grace_s))
            await self._tell(one, "unloaded", "the configuration has no such model any more", barred=True)
            await self._take_down(one, 0)
            await self._desks.each(lambda desk: desk.forget(one.key))

    async def give_up(self, some: Iterable[Kept]) -> None:
        """Loads of `some` that run. Returns when they have ended, and with them whatever is being unloaded."""
        these = list(some)
        loads = [one.loading for one in these if one.loading is not None]
        for one in these:
            self._give_up_load(one)
        await asyncio.gather(*loads, *self._unloading, return_exceptions=True)

    # --- loading

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

    async def _load(self, one: Kept) -> None:
        async with one.lock:
            if one.state == "loaded":
                return
            if one.running:  # drained, and wanted back
                one.become("loaded")
                await self._desks.each(lambda desk: desk.attach(one.key))
                return
            await self._bring_up(one)

    async def _restart(self, one: Kept) -> None:
        async with one.lock:
            await self._tell(one, "loading", "")
            # Whoever gives it up here lets what runs finish, too.
            await self._desks.each(lambda desk: desk.drained(one.key, self._grace_s))
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
            if self._kept().get(one.replica) is one:
                self._engines[one.replica] = one.engine
            await self._desks.each(lambda desk: desk.attach(one.key))
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
            one.retry_at = time.monotonic() + self._retry_s
            await self._tell(one, "unloaded", f"it could not be loaded: {in_public(said)}")
            raise self._unloadable(one, self._retry_s) from error
        logger.info("loaded %s in %.1f s", one.replica, time.monotonic() - begun)

    async def _undo(self, one: Kept) -> None:
        self._engines.pop(one.replica, None)
        with contextlib.suppress(Exception):
            await self._desks.each(lambda desk: desk.detach(one.key))
        await one.stop(0)
        self._budget.give_back(one.key)

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

    # --- unloading

    async def _take_down(self, one: Kept, grace_s: float) -> None:
        await self._desks.each(lambda desk: desk.drained(one.key, grace_s))
        await self._desks.each(lambda desk: desk.detach(one.key))
        if self._kept().get(one.replica) is one:
            self._engines.pop(one.replica, None)
        await one.stop(0)

    async def _tell(self, one: Kept, state: HeldState, reason: str, *, barred: bool = False) -> None:
        one.become(state, reason, barred=barred)
        await self._desks.each(lambda desk: desk.mark(one.key, state, reason, barred))

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
            if not all(await self._desks.each(lambda desk: desk.shut_if_idle(one.key, for_s))):
                await self._desks.each(lambda desk: desk.attach(one.key))  # somebody came: it stays
                return False
            one.become("draining", "it is being unloaded")
            await self._take_down(one, 0)
            self._budget.give_back(one.key)
            await self._tell(one, "unloaded", "")
        logger.info("unloaded %s, which nobody used", one.replica)
        return True
