from __future__ import annotations

from llm_inference.engine.base import EngineStats
from llm_inference.engine.fake import FakeEngine
from llm_inference.gateway.admission.engines import full_engines
from llm_inference.gateway.routing.router import Router


class Telling(FakeEngine):
    usage: float | None = None

    def stats(self) -> EngineStats:
        return EngineStats(kv_cache_usage=self.usage)


def test_full_is_what_says_so() -> None:
    engine = Telling("fake")
    router = Router.of_engines({"fake": engine})
    full = full_engines(router, 0.9)
    assert not full("fake")  # it does not tell
    engine.usage = 0.89
    assert not full("fake")
    engine.usage = 0.9
    assert full("fake")
    assert not full("another")
    assert not full_engines(router, None)("fake")
