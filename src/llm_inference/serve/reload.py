"""Taking a changed configuration while requests run: by every gateway process, or by none.

    read ──► compare ──► start and warm what is new ──► every desk: prepare ──► every desk: commit ──► retire the old

Until the commit nothing has changed, so a configuration that is wrong, whose engine does not start, or that one of the
processes cannot serve leaves everything as it was. Requests keep the table that they began with. An entry whose engine
is told the same as before keeps its engine; aliases, weights, tiers and routing are the table's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from llm_inference.config.loading import check_budget
from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.errors import ConfigError
from llm_inference.gateway.admin.fleet import ReloadReport
from llm_inference.serve.keeper import Keeper
from llm_inference.serve.kept import Kept
from llm_inference.serve.routing import replica_configs

logger = logging.getLogger(__name__)

#: Sections of the file that are read at the start alone.
_FIXED_SECTIONS = ("api", "admission", "loading", "telemetry")
#: Keys of a model that were read at the start alone.
_FIXED_KEYS = ("limits", "price")
#: Between the commit and the stop: a request that was just routed by the old table is on its way to its engine.
_HANDOVER_S = 1.0


class Reloader:
    """`config`: as it was read for the start; what is served of it is the keeper's."""

    def __init__(self, config: ServerConfig, read: Callable[[], ServerConfig], keeper: Keeper) -> None:
        self._config = config
        self._begun = config  # what is in force of the sections that are read at the start alone
        self._read = read
        self._keeper = keeper
        self._one = asyncio.Lock()
        self._closing = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()

    async def reload(self) -> ReloadReport:
        """One at a time. Raises `StartupError`, and then everything is as it was."""
        async with self._one:
            new = await asyncio.to_thread(self._read)
            old_told, new_told = _told(self._config), _told(new)
            _refuse_changed_applications(old_told, new_told)
            same = [one for one in new_told if old_told.get(one) == new_told[one]]
            unlike = _needs_restart(self._begun, new)
            fresh, gone = await self._take(new, same)
            self._config = new
            task = asyncio.create_task(self._retire(gone))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        report = ReloadReport([one.replica for one in fresh], [one.replica for one in gone], same, unlike)
        logger.info(
            "reloaded: started %s, stopping %s, kept %s", *map(_listing, (report.started, report.stopped, same))
        )
        if unlike:
            logger.warning("not taken until the server is restarted: %s", ", ".join(unlike))
        return report

    async def _take(self, new: ServerConfig, same: list[str]) -> tuple[list[Kept], list[Kept]]:
        """What is new, started and served everywhere, and what is no longer served. Raises `StartupError`."""
        keeper = self._keeper
        served = new.model_copy(update={name: getattr(keeper.config, name) for name in _FIXED_SECTIONS})
        _check_together(served)
        fresh: list[Kept] = []
        try:
            fresh = await keeper.plan(served, without=same)
            await _load_what_is_lazy_no_more(keeper, served, same)
            await keeper.start(fresh, warm=True)
            known = {**{one: keeper.kept[one] for one in same}, **{one.replica: one for one in fresh}}
            entries = {one: entry for entry in served.models for one in replica_configs(entry)}
            kept = {one: known[one] for one in entries}
            # Only this keeps gateway processes that start meanwhile waiting.
            async with keeper.changing:
                try:
                    posts = [msgspec.structs.replace(one.post(), lazy=entries[name].lazy) for name, one in kept.items()]
                    await keeper.desks.each(lambda desk: desk.prepare(served, posts))
                except BaseException:
                    await keeper.desks.each(lambda desk: desk.rollback())
                    raise
                await keeper.desks.each(lambda desk: desk.commit())
                keeper.config = served
                for name, entry in entries.items():
                    kept[name].entry = entry
                return fresh, keeper.replace(kept)
        except BaseException:
            await keeper.stop(fresh, 0)
            raise

    async def close(self) -> None:
        """Wait until what was replaced has stopped, now that nobody waits for it any more."""
        self._closing.set()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def _retire(self, gone: list[Kept]) -> None:
        api, admission = self._begun.api, self._begun.admission
        # Requests at the door have chosen already, and may wait there for so long.
        waiting_s = admission.max_wait_s if admission.max_queue_requests else 0.0
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), _HANDOVER_S + waiting_s)
        try:
            await self._keeper.retire(gone, api.shutdown_grace_s)
        except Exception:
            logger.exception("what the reload replaced did not stop as it should")
        if gone:
            logger.info("stopped %s", _listing(one.replica for one in gone))


def _check_together(config: ServerConfig) -> None:
    """Raise `ConfigError` where new models do not fit the sections of the start; each by itself has been checked."""
    try:
        check_budget(config.loading, config.models)
    except ValueError as error:
        raise ConfigError(f"{error} (`loading` is as it was at the start; a restart takes the new one)") from error


async def _load_what_is_lazy_no_more(keeper: Keeper, config: ServerConfig, same: Iterable[str]) -> None:
    """Raises `NotReadyError`."""
    eager = {one for entry in config.models if not entry.lazy for one in replica_configs(entry)}
    for one in eager.intersection(same):
        kept = keeper.kept[one]
        if kept.entry.lazy and not kept.barred:
            await keeper.load(kept)


def _refuse_changed_applications(old: Mapping[str, ModelConfig], new: Mapping[str, ModelConfig]) -> None:
    """Raise `ConfigError` for a changed model on Ray: old and new would be one application of the cluster."""
    for name, model in new.items():
        if model.engine == "ray" and name in old and old[name].engine == "ray" and old[name] != model:
            raise ConfigError(f"{name}: a changed model on Ray needs a restart of this server (with `ray.keep: true`)")


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


def _listing(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
