"""One started engine among those that may take a request: its load, and whether it is well."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from llm_inference.engine.base import Engine, ReportsStats
from llm_inference.engine.held import Held
from llm_inference.errors import LLMInferenceError, NotReadyError, OverloadedError, RequestError
from llm_inference.gateway.routing.breaker import Breaker, Ejection

_LOG = logging.getLogger("llm_inference.gateway.routing")

#: A replica that says it is full is believed for as long as it says, but no longer than this.
_MAX_BUSY_S = 5.0


class Replica:
    """`id` is public: logs, ledger and `x-served-by` show it. One event loop, no locks.

    `outstanding_tokens` are those of the prompts and of the longest answers that the requests in flight ask for, at
    a guess. Loads are of this process: further gateway workers count their own.
    """

    def __init__(
        self,
        replica_id: str,
        engine: Engine,
        *,
        max_in_flight: int | None = None,
        ejection: Ejection | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = replica_id
        self.engine = engine
        self.breaker = Breaker(ejection, clock)
        self.in_flight = 0
        self.outstanding_tokens = 0
        self.num_requests = 0
        self.num_failures = 0
        self.num_background = 0  # replays that give way to users, and make nobody wait
        self._max_in_flight = max_in_flight
        # Looked up once: to ask an object whether it has a protocol's methods costs more than to ask for its load.
        self._stats = engine.stats if isinstance(engine, ReportsStats) else None
        self._held = engine if isinstance(engine, Held) else None
        self._busy_until = 0.0
        self._clock = clock

    def __repr__(self) -> str:
        return f"Replica({self.id!r})"

    @property
    def available(self) -> bool:
        """Not ejected, or due for a try; not drained or unloaded by an operator."""
        return self.in_service and self.breaker.available

    @property
    def in_service(self) -> bool:
        """Not drained or unloaded by an operator."""
        return self._held is None or self._held.takes

    @property
    def loaded(self) -> bool:
        """A request would not have to wait for the model to be loaded."""
        return self._held is None or self._held.state == "loaded"

    @property
    def saturated(self) -> bool:
        """Whether a request would wait there: as many run as it can run at once, or it has just said so."""
        if self._busy_until and self._clock() < self._busy_until:
            return True
        limit = self._max_in_flight or self.engine.info.max_num_seqs
        if limit is None:
            return False
        if self.in_flight >= limit:
            return True
        if self._stats is None:
            return False
        stats = self._stats()  # other workers' requests are in there, too
        return stats.num_running + stats.num_waiting - self.num_background >= limit

    @property
    def idle(self) -> bool:
        """Nothing runs there, of whatever process."""
        if self.in_flight or self.saturated or not self.loaded:
            return False
        stats = self._stats() if self._stats is not None else None
        return stats is None or stats.num_running + stats.num_waiting <= self.num_background

    @contextmanager
    def working(self, num_tokens: int) -> Iterator[None]:
        """A request of `num_tokens` is in flight there."""
        probing = self.breaker.begin()
        self.in_flight += 1
        self.outstanding_tokens += num_tokens
        self.num_requests += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self.outstanding_tokens -= num_tokens
            self.breaker.end(probing)

    def succeeded(self) -> None:
        self._busy_until = 0.0
        self.breaker.succeeded()

    def failed(self, error: Exception) -> None:
        """What `error` says of the replica. The caller's fault and a full queue are no illness."""
        if isinstance(error, RequestError):
            self.breaker.succeeded()
        elif isinstance(error, OverloadedError):
            self.breaker.succeeded()
            self._busy_until = self._clock() + min(error.retry_after_s or 1.0, _MAX_BUSY_S)
        else:
            self.num_failures += 1
            if self.breaker.failed(at_once=isinstance(error, NotReadyError)):
                left_s = self.breaker.ejected_until - self._clock()
                why = error.full_message if isinstance(error, LLMInferenceError) else error
                _LOG.warning("replica %s is left alone for %.3g s: %s", self.id, left_s, why)


def header_value(replica_id: str) -> bytes:
    """The id as a header may carry it: names beyond printable ASCII are percent-encoded."""
    if replica_id.isascii() and replica_id.isprintable():
        return replica_id.encode()
    return quote(replica_id, safe=" !#$&'()*+,/:;=?@[]").encode()
