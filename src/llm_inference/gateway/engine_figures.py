"""The engines' load for metrics: what the engine itself says where it can be asked, else what this process has counted.

Routing reads `Engine.stats` instead, which is of this moment; an engine is asked only when somebody scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from llm_inference.engine.base import Engine, EngineStats, ReportsOwnMetrics, ReportsStats

_TIMEOUT_S = 1.0


class EngineFigures:
    """`engines` by the name that metrics show."""

    def __init__(self, engines: Callable[[], Mapping[str, Engine]]) -> None:
        self._engines = engines
        self._asked: dict[str, EngineStats] = {}

    async def refresh(self) -> None:
        """Ask all that can be asked, at once and not for long."""
        named = [(name, one) for name, one in self._engines().items() if isinstance(one, ReportsOwnMetrics)]
        if not named:
            self._asked = {}
            return
        answers = await asyncio.gather(
            *(asyncio.wait_for(engine.own_stats(), _TIMEOUT_S) for _, engine in named), return_exceptions=True
        )
        self._asked = {
            name: answer for (name, _), answer in zip(named, answers, strict=True) if isinstance(answer, EngineStats)
        }

    def read(self) -> dict[str, EngineStats]:
        engines = self._engines()
        counted = {name: engine.stats() for name, engine in engines.items() if isinstance(engine, ReportsStats)}
        return {**counted, **{name: stats for name, stats in self._asked.items() if name in engines}}
