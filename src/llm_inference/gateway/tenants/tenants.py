"""Keys, limits and ledger of one gateway process, as the handlers see them: let in, settle, write down.

    check      before the body is read: a caller whose minute is used up costs nothing
    admitted   around the work: caps, reservation of all limits at once, settling with what was really used
    write_down at the very end, for the ledger

Whatever is not configured is None here, and costs nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import Scope as AsgiScope

from llm_inference.engine.base import Engine
from llm_inference.engine.types import Usage
from llm_inference.errors import RateLimitError
from llm_inference.gateway.auth import Keys
from llm_inference.gateway.record import RequestRecord
from llm_inference.gateway.tenants.caller import TrustedProxies
from llm_inference.gateway.tenants.grant import Grant, WorkT
from llm_inference.gateway.tenants.key import ApiKey
from llm_inference.gateway.tenants.ledger import Entry, Ledger
from llm_inference.gateway.tenants.limit_store import LimitStore
from llm_inference.gateway.tenants.limits import NO_LIMITS, Limits, Subject
from llm_inference.gateway.tenants.prices import FREE, Price

#: Callers whose minute is used up and who are told so without a question to the store.
_MAX_BLOCKED = 10_000
#: Keys whose limits are looked up once.
_MAX_CALLERS = 10_000


class SumsLedger(Protocol):
    """`LedgerStore`, as far as reports need it. Synchronous: called in a thread."""

    def usage(self, by: Sequence[str], since: float | None = None, *, key: str | None = None) -> list[dict[str, Any]]:
        """See `LedgerStore.usage`. Raises `NotReadyError`."""
        ...


@dataclass(slots=True)
class Tenants:
    """Built by `serve`, which also starts and closes what is in it."""

    keys: Keys | None = None
    limits: LimitStore | None = None
    key_limits: Limits = NO_LIMITS  # of keys that say nothing else
    address_limits: Limits = NO_LIMITS  # of callers without a key
    model_limits: Mapping[str, Limits] = field(default_factory=dict)  # of a model, all callers together
    prices: Mapping[str, Price] = field(default_factory=dict)
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    ledger: Ledger | None = None
    ledger_sums: SumsLedger | None = None
    reading_ledger: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Names of requests in the counters, apart from those of other processes.
    _prefix: str = field(default_factory=lambda: os.urandom(9).hex())
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    #: subject → (monotonic time until which its requests are used up, the error, the headers).
    _blocked: dict[str, tuple[float, RateLimitError, tuple[tuple[bytes, bytes], ...]]] = field(default_factory=dict)
    #: id → (the key that was seen last, its limits): they change with the key.
    _callers: dict[str, tuple[ApiKey, Subject | None]] = field(default_factory=dict)

    def check(self, record: RequestRecord, scope: AsgiScope) -> None:
        """Raise `RateLimitError` again where it was raised for this caller's requests and the time is not over."""
        if not self._blocked:
            return
        subject = self._caller(record, scope)
        blocked = self._blocked.get(subject.key) if subject is not None else None
        if subject is None or blocked is None:
            return
        until, error, headers = blocked
        left = until - time.monotonic()
        if left <= 0:
            del self._blocked[subject.key]
            return
        record.headers = headers
        record.metrics.refused("requests_per_minute")
        raise RateLimitError(error.message, code=error.public_code, retry_after_s=left)

    def admitted(
        self, record: RequestRecord, scope: AsgiScope, engine: Engine, work: Sequence[WorkT]
    ) -> Grant[WorkT] | None:
        """To be entered around the work; None where nothing is limited for this caller and model.

        Entering raises `RateLimitError`, `InvalidRequestError` over a cap, `NotReadyError` where the limits' store is
        away and that closes the door. Leaving settles with `record.usage`, however it is left.
        """
        key = record.key
        if self.limits is None and (key is None or key.scope.priority is None):
            return None
        subjects = self._subjects(record, scope) if self.limits is not None else []
        if not subjects and (key is None or key.scope.priority is None):
            return None
        return Grant(self, record, engine, work, subjects)

    def price_of(self, model: str, usage: Usage | None) -> int:
        """Of `usage`, in billionths."""
        if usage is None:
            return 0
        return self.prices.get(model, FREE).nanos(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)

    def new_lease(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def block(self, subject: str, error: RateLimitError, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """`check` refuses the subject's requests until the error's time is over."""
        if error.retry_after_s is None:
            return
        if len(self._blocked) >= _MAX_BLOCKED:
            self._blocked.clear()  # they are asked about again, that is all
        self._blocked[subject] = (time.monotonic() + error.retry_after_s, error, headers)

    def write_down(self, record: RequestRecord) -> None:
        """A row of the ledger, for a request that is over."""
        ledger = self.ledger
        if ledger is None:
            return
        usage = record.usage or Usage()
        duration_s = time.perf_counter() - record.started
        ledger.add(
            Entry(
                row_id=ledger.new_row_id(),
                time=time.time() - duration_s,
                request_id=record.request_id,
                key_id="" if record.key is None else record.key.id,
                model=record.model,
                route=record.route,
                tier=record.tier,
                replica=record.replica,
                status=record.final_status,
                finish_reason=record.finish_reason or ("abort" if record.aborted else ""),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                ttft_s=record.ttft_s,
                duration_s=duration_s,
            )
        )

    def _caller(self, record: RequestRecord, scope: AsgiScope) -> Subject | None:
        key = record.key
        if key is not None:
            known = self._callers.get(key.id)
            if known is None or known[0] is not key:
                if len(self._callers) >= _MAX_CALLERS:
                    self._callers.clear()
                known = self._callers[key.id] = (key, self._subject_of(key))
            return known[1]
        if self.address_limits == NO_LIMITS:
            return None
        return Subject(f"address:{self.proxies.client_of(scope)}", "this address", self.address_limits)

    def _subject_of(self, key: ApiKey) -> Subject | None:
        limits = key.limits.over(self.key_limits)
        return None if limits == NO_LIMITS else Subject(f"key:{key.id}", "this API key", limits)

    def _subjects(self, record: RequestRecord, scope: AsgiScope) -> list[Subject]:
        caller = self._caller(record, scope)
        found = [] if caller is None else [caller]
        of_model = self.model_limits.get(record.model)
        if of_model is not None:
            found.append(Subject(f"model:{record.model}", f"the model {record.model!r}", of_model))
        return found
