"""Keeper and reloader of this process as its gateway asks for them, and the desk of a gateway that is alone."""

from __future__ import annotations

from collections.abc import Sequence

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.errors import ConfigError
from llm_inference.gateway.admin.fleet import Action, FleetReport, ReloadReport
from llm_inference.serve.desk import Desk, Post
from llm_inference.serve.keeper import Keeper
from llm_inference.serve.reload import Reloader


class OwnFleet:
    """A `Fleet`. `reloader` None: the configuration is no file that could be read anew."""

    def __init__(self, keeper: Keeper, reloader: Reloader | None) -> None:
        self._keeper = keeper
        self._reloader = reloader

    async def reload(self) -> ReloadReport:
        if self._reloader is None:
            raise ConfigError("this server cannot read its configuration anew: it was given none as a file")
        return await self._reloader.reload()

    async def act(self, action: Action, replicas: Sequence[str]) -> None:
        await self._keeper.act(action, replicas)

    async def report(self) -> FleetReport:
        return await self._keeper.report()


class _OwnEngines:
    """A `Source`: the keeper's engines themselves."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def plan(self, model: ModelConfig, post: Post) -> Engine:
        return self._keeper.planned(post.run_dir)

    async def start(self, engine: Engine) -> None:
        """Nothing: the keeper has."""

    async def stop(self, engine: Engine) -> None:
        """Nothing: the keeper will."""


def own_desk(keeper: Keeper) -> Desk:
    """That of the process which is keeper and gateway in one."""
    return Desk(_OwnEngines(keeper), keeper.wake, max_wait_s=keeper.config.loading.max_wait_s)
