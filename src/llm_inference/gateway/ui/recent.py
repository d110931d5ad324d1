"""The last requests for models, kept in memory for the status page: what a person asks first, without a database.

Bounded and cheap: one small record per request at its end, sums and percentiles only when somebody looks. Each
gateway process knows its own requests alone.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from llm_inference.gateway.record import RequestRecord

#: Figures are over the requests that ended within this time, at most `MAX_KEPT` of them.
WINDOW_S = 300.0
MAX_KEPT = 2048
MAX_ERRORS = 50


class Finished(msgspec.Struct, frozen=True, gc=False):
    """One request that is over. Durations in seconds; None where there was no first (or second) token."""

    at: float  # Unix seconds
    ended: float  # on the clock of `Recent`
    request_id: str
    key_id: str  # "": keyless
    model: str  # "": none was recognised
    tier: str
    route: str
    status: int
    error: str  # a code, "" for none
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float | None
    ttft_s: float | None
    token_s: float | None  # mean time per token after the first
    total_s: float


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds, of the requests that have such a time."""

    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True):
    """Sums and percentiles of the requests that ended within `window_s`.

    `window_s` is shorter than `WINDOW_S` while the process is young, or where more requests came than are kept.
    """

    window_s: float
    num_requests: int
    num_errors: int  # status 400 and above, or an error within a stream
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: Percentiles | None
    ttft_s: Percentiles | None
    token_s: Percentiles | None
    total_s: Percentiles | None


class Recent:
    """Kept by `RequestContext`, read by the status route. One event loop, no locks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._requests: deque[Finished] = deque(maxlen=MAX_KEPT)
        self._errors: deque[Finished] = deque(maxlen=MAX_ERRORS)

    @property
    def uptime_s(self) -> float:
        return self._clock() - self._started

    def keep(self, record: RequestRecord) -> None:
        """Take a record whose exchange is over; of routes that ask a model, not of probes and scans."""
        if not record.metered:
            return
        usage = record.usage
        num_tokens = usage.completion_tokens if usage else 0
        token_s = None
        if record.first_token is not None and num_tokens > 1:
            token_s = (record.last_token - record.first_token) / (num_tokens - 1)
        one = Finished(
            at=time.time(),
            ended=self._clock(),
            request_id=record.request_id,
            key_id=record.key.id if record.key is not None else "",
            model=record.model,
            tier=record.tier,
            route=record.route,
            status=record.final_status,
            error=record.error or "",
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=num_tokens,
            cached_tokens=usage.cached_tokens if usage else 0,
            queue_s=record.queue_s,
            ttft_s=record.ttft_s,
            token_s=token_s,
            total_s=time.perf_counter() - record.started,
        )
        self._requests.append(one)
        if _failed(one):
            self._errors.append(one)

    def requests(self) -> list[Finished]:
        """Those of the window, oldest first."""
        oldest = self._clock() - WINDOW_S
        return [one for one in self._requests if one.ended >= oldest]

    def errors(self) -> list[Finished]:
        """The last ones, however long ago, newest first."""
        return list(reversed(self._errors))

    def figures(self, requests: Sequence[Finished]) -> Figures:
        """Of some of `requests()`."""
        full = len(self._requests) == MAX_KEPT
        since_oldest = self._clock() - self._requests[0].ended if full else self.uptime_s
        return Figures(
            window_s=min(WINDOW_S, since_oldest),
            num_requests=len(requests),
            num_errors=sum(map(_failed, requests)),
            prompt_tokens=sum(one.prompt_tokens for one in requests),
            completion_tokens=sum(one.completion_tokens for one in requests),
            cached_tokens=sum(one.cached_tokens for one in requests),
            queue_s=percentiles([one.queue_s for one in requests]),
            ttft_s=percentiles([one.ttft_s for one in requests]),
            token_s=percentiles([one.token_s for one in requests]),
            total_s=percentiles([one.total_s for one in requests if not _failed(one)]),
        )


def percentiles(values: Sequence[float | None]) -> Percentiles | None:
    """By nearest rank: each is a time that some request really took. None without any."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p95, p99 = (known[math.ceil(share * len(known)) - 1] for share in (0.5, 0.95, 0.99))
    return Percentiles(p50, p95, p99)


def _failed(one: Finished) -> bool:
    return one.status >= 400 or bool(one.error)
