from __future__ import annotations

import asyncio

import pytest

from llm_inference.engine.base import EngineStats
from llm_inference.engine.fake import FakeEngine
from llm_inference.errors import NotReadyError
from llm_inference.gateway import engine_figures
from llm_inference.gateway.engine_figures import EngineFigures


class Elsewhere(FakeEngine):
    """An engine that can be asked for its own figures."""

    answer: EngineStats | Exception | None = EngineStats(num_running=9, known=("num_running",))
    delay_s = 0.0

    async def own_stats(self) -> EngineStats | None:
        await asyncio.sleep(self.delay_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_what_the_engine_says_goes_before_what_was_counted_here() -> None:
    engines = {"here": FakeEngine("here"), "there": Elsewhere("there")}
    figures = EngineFigures(lambda: engines)
    assert figures.read()["there"].num_running == 0  # nobody has asked
    await figures.refresh()
    assert figures.read()["there"].num_running == 9
    assert figures.read()["here"].num_running == 0


@pytest.mark.parametrize("answer", [None, NotReadyError("gone"), "slow"])
async def test_who_does_not_answer_is_counted_here(
    answer: Exception | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_figures, "_TIMEOUT_S", 0.02)
    engine = Elsewhere("m")
    figures = EngineFigures(lambda: {"m": engine})
    await figures.refresh()
    if isinstance(answer, str):
        engine.delay_s = 10
    else:
        engine.answer = answer
    await figures.refresh()
    assert figures.read()["m"].num_running == 0  # not what it said the last time
