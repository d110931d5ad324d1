"""A request of one token to each idle engine, every so often: what only shows when it is used shows before a user does.

An engine that works is its own proof and is left alone. What comes of it is told (`/health/detail`, metrics, a line in
the log) and restarts nothing: that is the business of `/health`, which goes by progress.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing

import msgspec

from llm_inference.engine.base import Engine, ReportsStats
from llm_inference.engine.held import Held
from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.errors import LLMInferenceError
from llm_inference.telemetry.metrics import Metrics

_LOG = logging.getLogger("llm_inference.gateway")

#: A token that takes longer is a failure.
TIMEOUT_S = 30.0
_PROMPT = "Hello"


class CanaryResult(msgspec.Struct, frozen=True):
    """Of the last time: `at` is Unix time, `seconds` how long it took."""

    ok: bool
    seconds: float
    at: float
    reason: str = ""


class Canary:
    """`engines` by the name that metrics show. What comes of it is put into `results`."""

    def __init__(
        self, engines: Callable[[], Mapping[str, Engine]], metrics: Metrics, results: dict[str, CanaryResult]
    ) -> None:
        self._engines = engines
        self._metrics = metrics
        self.results = results

    async def run(self, interval_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.round()
            except Exception:  # an engine that a reload is just taking away may do anything
                _LOG.exception("a round of the canary failed; the next one comes")

    async def round(self) -> None:
        """Every idle engine once, one after the other. Of what is served no more nothing is kept."""
        for name, engine in dict(self._engines()).items():
            if self._serves(name, engine) and engine.capabilities.generate and not _busy(engine):
                await self._ask(name, engine)
        for name in self.results.keys() - self._engines().keys():
            del self.results[name]

    def _serves(self, name: str, engine: Engine) -> bool:
        """A reload may have taken it away, or put another one in its place."""
        return self._engines().get(name) is engine

    async def _ask(self, name: str, engine: Engine) -> None:
        request = GenerateRequest(
            request_id=f"canary-{time.time_ns():x}",
            model=name,
            prompt=_PROMPT,
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
        )
        begun = time.perf_counter()
        reason = detail = ""
        try:
            await asyncio.wait_for(_drain(engine, request), TIMEOUT_S)
        except asyncio.TimeoutError:
            reason = f"no token within {TIMEOUT_S:g} s"
        except LLMInferenceError as error:
            reason = error.message
            detail = f" ({error.detail})" if error.detail else ""  # for the log alone
        except Exception as error:
            _LOG.exception("the canary of %s failed", name)
            reason = f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - begun
        if not self._serves(name, engine):
            return
        self.results[name] = CanaryResult(not reason, round(seconds, 6), time.time(), reason)
        self._metrics.count("canary_runs_total", (name, "failed" if reason else "ok"))
        self._metrics.observe("canary_seconds", (name,), seconds)
        if reason:
            _LOG.warning("the canary of %s got no token: %s%s", name, reason, detail)


async def _drain(engine: Engine, request: GenerateRequest) -> None:
    async with aclosing(engine.generate(request)) as deltas:
        async for _ in deltas:
            pass


def _busy(engine: Engine) -> bool:
    if isinstance(engine, Held) and (engine.lazy or engine.state != "loaded"):
        return True  # to ask it would load it, or keep it loaded
    if not isinstance(engine, ReportsStats):
        return False
    stats = engine.stats()
    return stats.num_running + stats.num_waiting > 0
