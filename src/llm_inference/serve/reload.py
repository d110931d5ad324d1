"""Taking a changed configuration while requests run.

    read ──► compare ──► start and warm what is new ──► swap the table ──► drain and stop what is no longer there

Until the swap nothing has changed, so a configuration that is wrong, or whose engine does not start, leaves everything
as it was. Requests keep the table that they began with. An entry whose engine is told the same as before keeps its
engine; aliases, weights, tiers and routing are the table's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from itertools import count

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import ConfigError
from llm_inference.gateway.admin.reloading import ReloadReport
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.table import RoutingTable
from llm_inference.serve.engines import start_engines
from llm_inference.serve.routing import replica_configs, routing_table
from llm_inference.serve.warm_up import warm_models

logger = logging.getLogger(__name__)

#: Sections of the file that are read at the start alone.
_FIXED_SECTIONS = ("api", "admission", "telemetry")
#: Keys of a model that were read at the start alone.
_FIXED_KEYS = ("limits", "price")
#: Between the swap and the stop: a request that has just been routed by the old table is on its way to its engine.
_HANDOVER_S = 1.0


class Reloader:
    """`engines` is changed in place: whoever stops them at the end stops those of the newest configuration."""

    def __init__(
        self,
        config: ServerConfig,
        read: Callable[[], ServerConfig],
        router: Router,
        engines: dict[str, Engine],
        context: EngineContext,
    ) -> None:
        self._config = config
        self._begun = config  # what is in force of the sections that are read at the start alone
        self._closing = asyncio.Event()
        self._read = read
        self._router = router
        self._engines = engines
        self._context = context
        self._lock = asyncio.Lock()
        self._numbers = count(1)
        self._retiring: set[asyncio.Task[None]] = set()

    async def reload(self) -> ReloadReport:
        """One at a time. Raises `StartupError`, and then everything is as it was."""
        async with self._lock:
            new = await asyncio.to_thread(self._read)
            old_told, new_told = _told(self._config), _told(new)
            kept = {one: self._engines[one] for one in new_told if old_told.get(one) == new_told[one]}
            _refuse_changed_applications(old_told, new_told)
            started = await self._start(new, kept)
            table = routing_table(new.models, {**kept, **started})
            unlike = _needs_restart(self._begun, new)
            gone = {one: engine for one, engine in self._engines.items() if one not in kept}
            _keep_demotions(self._router.table, table, kept)
            old_table = self._router.replace(table)
            self._config = new
            self._engines.clear()
            self._engines.update({**kept, **started})
            task = asyncio.create_task(self._retire(old_table, gone))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        report = ReloadReport(list(started), list(gone), list(kept), unlike)
        logger.info("reloaded: started %s, stopping %s, kept %s", *map(_listing, (started, gone, kept)))
        if unlike:
            logger.warning("not taken until the server is restarted: %s", ", ".join(unlike))
        return report

    async def close(self) -> None:
        """Wait until what was replaced has stopped, now that nobody waits for it any more."""
        self._closing.set()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def _start(self, new: ServerConfig, kept: Mapping[str, Engine]) -> dict[str, Engine]:
        """The engines of the entries that are not kept whole, in a run directory of their own."""
        entries = tuple(model for model in new.models if not set(replica_configs(model)) <= set(kept))
        if not entries:
            return {}
        run_dir = self._context.run_dir / f"reload-{next(self._numbers)}"
        run_dir.mkdir(mode=0o700)
        context = dataclasses.replace(self._context, run_dir=run_dir, progress=False)
        started = await start_engines(entries, context, without=frozenset(kept))
        await warm_models(entries, started, lambda: None)
        return started

    async def _retire(self, table: RoutingTable, gone: Mapping[str, Engine]) -> None:
        api, admission = self._begun.api, self._begun.admission
        # Requests at the door have chosen already, and may wait there for so long.
        waiting_s = admission.max_wait_s if admission.max_queue_requests else 0.0
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), _HANDOVER_S + waiting_s)
        for group in table.groups.values():
            await group.close()
        ends = await asyncio.gather(*(one.stop(api.shutdown_grace_s) for one in gone.values()), return_exceptions=True)
        for name, end in zip(gone, ends, strict=True):
            if isinstance(end, Exception):
                logger.error("%s did not stop as it should: %s", name, end)
        if gone:
            logger.info("stopped %s", _listing(gone))


def _refuse_changed_applications(old: Mapping[str, ModelConfig], new: Mapping[str, ModelConfig]) -> None:
    """Raise `ConfigError` for a changed model on Ray: old and new would be one application of the cluster."""
    for name, model in new.items():
        if model.engine == "ray" and name in old and old[name].engine == "ray" and old[name] != model:
            raise ConfigError(f"{name}: a changed model on Ray needs a restart of this server (with `ray.keep: true`)")


def _keep_demotions(old: RoutingTable, new: RoutingTable, kept: Mapping[str, Engine]) -> None:
    for name, group in new.groups.items():
        before = old.groups.get(name)
        if before is None or before.shadowing is None or group.shadowing is None or before.ladder != group.ladder:
            continue
        same = {one.tier for one in group.deployments if all(replica.id in kept for replica in one.replicas)}
        group.shadowing.agreement.take_over(before.shadowing.agreement, same)


def _told(config: ServerConfig) -> dict[str, ModelConfig]:
    """By replica: what its engine is told."""
    return {
        one: told.model_copy(update={"aliases": ()})
        for model in config.models
        for one, told in replica_configs(model).items()
    }


def _needs_restart(old: ServerConfig, new: ServerConfig) -> list[str]:
    unlike = [name for name in _FIXED_SECTIONS if getattr(old, name) != getattr(new, name)]
    before = {model.deployment: model for model in old.models}
    for model in new.models:
        was = before.get(model.deployment)
        unlike += [
            f"{key} of {model.deployment}"
            for key in _FIXED_KEYS
            if getattr(model, key) != (getattr(was, key) if was is not None else ModelConfig.model_fields[key].default)
        ]
    return unlike


def _listing(names: Mapping[str, Engine]) -> str:
    return ", ".join(names) or "none"
