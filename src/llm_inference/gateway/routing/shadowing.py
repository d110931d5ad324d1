"""Replays a sample of finished requests on other tiers while those are idle, to see how well their answers agree.

    served by int8  ──► replayed on golden ──► int8 is compared with it
    served by any   ──► replayed on golden and on every demoted tier ──► which may so come back

One at a time, from a bounded queue, with no user waiting for it: what finds the replica busy waits, what waits too long
or meets a user's request is dropped. Nothing of it is billed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from llm_inference.engine.types import GenerateRequest
from llm_inference.errors import LLMInferenceError, RequestTimeoutError
from llm_inference.gateway.routing.agreement import Agreement, Answer, compare
from llm_inference.gateway.routing.replica import Replica

_LOG = logging.getLogger("llm_inference.gateway.routing")

#: The last in every engine's queue.
LOWEST_PRIORITY = 2**31 - 1
#: How long a replay waits for an idle replica, and how often it looks.
PATIENCE_S = 30.0
_POLL_S = 0.05
#: How long a replay may take: no client's deadline ends it, and the others wait for it.
REPLAY_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class _Job:
    request: GenerateRequest
    version: str
    tier: str
    answer: Answer


class Shadowing:
    """`replicas`: by (version, tier). Answers of different versions are never compared."""

    def __init__(
        self,
        agreement: Agreement,
        replicas: Mapping[tuple[str, str], Sequence[Replica]],
        rng: random.Random,
        *,
        patience_s: float = PATIENCE_S,
        timeout_s: float = REPLAY_TIMEOUT_S,
    ) -> None:
        self.agreement = agreement
        self.num_replayed = 0
        self.num_dropped = 0
        self._replicas = replicas
        self._rng = rng
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._jobs: list[_Job] = []
        self._worker: asyncio.Task[None] | None = None

    def sample(self, request: GenerateRequest, version: str, tier: str, *, greedy: bool) -> Answer | None:
        """Where to collect the answer of this request, if it is among the sample; then `offer` it when it is whole."""
        agreement = self.agreement
        if tier == agreement.golden and not agreement.any_demoted:
            return None
        if (version, agreement.golden) not in self._replicas or not _comparable(request, greedy):
            return None
        return Answer() if self._rng.random() < agreement.rules.sample else None

    def offer(self, request: GenerateRequest, version: str, tier: str, answer: Answer) -> None:
        """Compare it when there is time; at once, if nothing else waits."""
        if not answer.finished:
            return
        if len(self._jobs) >= self.agreement.rules.max_queue:
            self.num_dropped += 1
            return
        self._jobs.append(_Job(request, version, tier, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        self._jobs.clear()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while self._jobs:
            try:
                await self._compare(self._jobs[0])
            except LLMInferenceError as error:
                self.num_dropped += 1
                _LOG.info("a comparison of tiers failed: %s", error.full_message)
            except Exception:
                self.num_dropped += 1
                _LOG.exception("a comparison of tiers failed")
            finally:
                if self._jobs:  # closed meanwhile: nothing is left
                    self._jobs.pop(0)

    async def _compare(self, job: _Job) -> None:
        agreement = self.agreement
        reference: Answer | None = job.answer
        if job.tier != agreement.golden:
            reference = await self._replay(job, agreement.golden)
            if reference is not None:
                agreement.record(job.tier, compare(reference, job.answer))
        if reference is None:
            self.num_dropped += 1
            return
        for version, tier in self._replicas:
            if version == job.version and tier not in (job.tier, agreement.golden) and agreement.demoted(tier):
                other = await self._replay(job, tier)
                if other is not None:
                    agreement.record(tier, compare(reference, other))

    async def _replay(self, job: _Job, tier: str) -> Answer | None:
        """The same request's answer by another tier; None where a user needed the replica."""
        replica = await self._idle(self._replicas[job.version, tier])
        if replica is None:
            return None
        supports = replica.engine.capabilities.support
        request = msgspec.structs.replace(
            job.request,
            request_id=f"{job.request.request_id}-{tier}",
            trace_context={},  # the user's trace is over
            priority=LOWEST_PRIORITY if supports("priority") != "refused" else 0,
            sampling=msgspec.structs.replace(job.request.sampling, temperature=0.0),
        )
        replica.num_background += 1
        try:
            answer = await asyncio.wait_for(_answer(replica, request), self._timeout_s)
        except asyncio.TimeoutError as error:
            raise RequestTimeoutError(f"{replica.id} did not finish a replay within {self._timeout_s:g} s") from error
        finally:
            replica.num_background -= 1
        if answer is not None:
            self.num_replayed += 1
        return answer if answer is not None and answer.finished else None

    async def _idle(self, replicas: Sequence[Replica]) -> Replica | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            for replica in replicas:
                if replica.available and replica.idle:
                    return replica
            if loop.time() >= deadline:
                return None
            await asyncio.sleep(_POLL_S)


async def _answer(replica: Replica, request: GenerateRequest) -> Answer | None:
    """None: a user's request came there meanwhile."""
    answer = Answer()
    async with aclosing(replica.engine.generate(request)) as deltas:
        async for delta in deltas:
            answer.add(delta)
            if replica.in_flight:
                return None
    return answer


def _comparable(request: GenerateRequest, greedy: bool) -> bool:
    """Whether two runs of one model would give the same answer: nothing is drawn, and there is one choice."""
    sampling = request.sampling
    drawn = sampling.temperature != 0 and not (sampling.temperature is None and greedy)
    several = sampling.n > 1 or (sampling.best_of or 1) > 1 or sampling.num_beams > 1
    return not (drawn or several or request.echo or sampling.logits_processors)
