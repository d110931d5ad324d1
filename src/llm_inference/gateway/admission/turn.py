"""One request's place: waited for where it must be, held while the block runs, given back at its end.

    async with Turn(…) as work:      work: the engine requests, shortened where a degrade rule says so
        async with turn.interrupt(): …      for what is left of the request's time

Here admission meets HTTP and keys: who counts as one caller, and what a request weighs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, TypeVar, cast

from starlette.types import Receive, Scope

from llm_inference.engine.base import Engine
from llm_inference.engine.types import EmbedRequest, GenerateRequest
from llm_inference.errors import RequestTimeoutError
from llm_inference.gateway.admission import degrade
from llm_inference.gateway.admission.admission import Admission, Visitor
from llm_inference.gateway.admission.deadline import deadline_of
from llm_inference.gateway.interrupt import Interrupt
from llm_inference.gateway.record import RequestRecord
from llm_inference.gateway.tenants import tokens

WorkT = TypeVar("WorkT", GenerateRequest, EmbedRequest)

#: Of a tier's globs in a key's scope: these name no single tier.
_GLOB = frozenset("*?[")


class Turn(Generic[WorkT]):
    """Raises on entering what `Admission.wait` raises, `ClientDisconnect`, and `InvalidRequestError` for its header."""

    def __init__(
        self,
        admission: Admission,
        scope: Scope,
        receive: Receive,
        record: RequestRecord,
        work: Sequence[WorkT],
        engine: Engine,
        *,
        limit_s: float | None,
    ) -> None:
        self._admission = admission
        self._scope = scope
        self._receive = receive
        self._record = record
        self._work: Sequence[WorkT] = work
        self._engine = engine
        self._deadline, self._whose = deadline_of(scope, record.started, limit_s)
        #: For the head of the answer.
        self.headers: tuple[tuple[bytes, bytes], ...] = ()

    async def __aenter__(self) -> Sequence[WorkT]:
        admission = self._admission
        filling = admission.filling if admission.rules.degrade else 0.0
        if not admission.try_enter(self._record.model):
            await self._wait()
        rules = admission.rules.degrade
        if not filling or not rules:
            return self._work
        try:
            return self._degraded(degrade.limit_of(rules, filling), lower=degrade.lowers(rules, filling))
        except BaseException:
            admission.leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.leave()

    def interrupt(self) -> Interrupt:
        """For the block's work: ends it when the client leaves or the request's time is up."""
        if self._deadline is None:
            return Interrupt(self._receive, None)
        total_s = self._deadline - self._record.started
        return Interrupt(self._receive, self._deadline - time.perf_counter(), total_s=total_s, whose=self._whose)

    def interrupt_after(self, timeout_s: float) -> Interrupt:
        """The same with a time of its own, for what is still to be said when the request's is up."""
        return Interrupt(self._receive, timeout_s)

    async def _wait(self) -> None:
        admission = self._admission
        visitor = Visitor(
            caller_of(self._record, self._scope),
            tier_of(self._record),
            self._record.model,
            self._priority(),
            sum(self._tokens(one) for one in self._work),
            self._deadline,
        )
        entered = False
        begun = time.perf_counter()
        try:
            # The deadline is admission's to keep while it waits: nothing has been computed then.
            async with Interrupt(self._receive, None):
                await admission.wait(visitor)
                entered = True
        except BaseException:
            if entered:
                admission.leave()
            raise
        finally:
            self._record.admission_s = time.perf_counter() - begun
        if self._deadline is not None and self._deadline <= time.perf_counter():
            admission.leave()
            raise RequestTimeoutError("The request's time was over before it began; nothing was computed.")

    def _priority(self) -> int:
        key = self._record.key
        asked = min((one.priority for one in self._work), default=0)
        return asked if key is None else key.scope.clamp(asked)

    def _tokens(self, one: WorkT) -> int:
        return tokens.likely_tokens(one, self._engine.info.max_model_len)

    def _degraded(self, limit: int | None, *, lower: bool) -> Sequence[WorkT]:
        """Vectors are never degraded: those of another tier could not be compared with the rest."""
        work = [one for one in self._work if isinstance(one, GenerateRequest)]
        if not work:
            return self._work
        tier = self._engine.lower() if lower and isinstance(self._engine, degrade.HasTiers) else ""
        shorter = work if limit is None else [degrade.degraded(one, limit) for one in work]
        shortened = any(new is not old for new, old in zip(shorter, work, strict=True))
        if shortened or tier:
            self.headers = (degrade.header_of(limit if shortened else None, tier),)
        return cast("Sequence[WorkT]", shorter)


def caller_of(record: RequestRecord, scope: Scope) -> str:
    """Who takes turns with others: a key, or an address where there are no keys."""
    if record.key is not None:
        return record.key.id
    client = scope.get("client")
    return str(client[0]) if client else ""


def tier_of(record: RequestRecord) -> str:
    """The tier whose share is used: what the request says, else the first that its key names."""
    if record.asked_tier and record.asked_tier not in ("auto", "default"):
        return record.asked_tier
    tiers = record.key.scope.tiers if record.key is not None else ()
    return next((tier for tier in tiers if not _GLOB & set(tier)), "")
