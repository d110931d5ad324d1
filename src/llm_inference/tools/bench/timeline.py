"""What one request went through, as times and counts, and the latencies that follow from them.

    scheduled ── queue ── sent ───── TTFT ───── first token ─ gap ─ … ─ last token ── ended
        │                  └──────────────── end-to-end ──────────────────────────────────┘
        └──────────────────────────── end-to-end from schedule ───────────────────────────┘

All times are seconds of one monotonic clock, counted from the start of the measurement. Knows nothing of HTTP.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: How the tokens of a chunk were counted: by the usage that came with it, or as one token a chunk.
Counting = Literal["usage", "chunks"]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request does not count. `kind` is a word to group by; `detail` is what the server or the system said."""

    kind: str
    detail: str
    status: int | None = None  # HTTP status, where there was one


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that reached the client together: all that one read from the network brought."""

    time_s: float
    num_tokens: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, finished or failed.

    `arrivals` ascend in time and each has at least one token. Their sum is `output_tokens` where `counting` is
    "usage"; where it is "chunks", `output_tokens` is still the server's own count if it told one at the end.
    """

    index: int = 0
    scheduled_s: float
    sent_s: float
    ended_s: float
    arrivals: tuple[Arrival, ...] = ()
    counting: Counting = "chunks"
    planned_input_tokens: int | None = None
    max_tokens: int | None = None
    input_tokens: int | None = None  # None: the server did not say
    cached_tokens: int = 0
    output_tokens: int = 0
    usage_told: bool = False
    finish_reason: str | None = None
    failure: Failure | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def queue_s(self) -> float:
        """From the time it was due to the time it was sent: waiting at the client, not at the server."""
        return self.sent_s - self.scheduled_s

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first token; None if none came."""
        return self.arrivals[0].time_s - self.sent_s if self.arrivals else None

    @property
    def ttft_scheduled_s(self) -> float | None:
        return None if self.ttft_s is None else self.ttft_s + self.queue_s

    @property
    def e2el_s(self) -> float:
        """From sending to the end of the stream."""
        return self.ended_s - self.sent_s

    @property
    def e2el_scheduled_s(self) -> float:
        return self.ended_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: (last token - first token) / (tokens - 1); None below two tokens."""
        if self.output_tokens < 2 or not self.arrivals:
            return None
        return (self.arrivals[-1].time_s - self.arrivals[0].time_s) / (self.output_tokens - 1)

    def inter_token_s(self) -> list[float]:
        """One latency per token after the first. k tokens that arrive together share the time since the arrival
        before evenly; those that came with the first token waited for nothing. The sum is last minus first arrival.
        """
        if not self.arrivals:
            return []
        latencies = [0.0] * (self.arrivals[0].num_tokens - 1)
        for before, arrival in zip(self.arrivals, self.arrivals[1:], strict=False):
            share = (arrival.time_s - before.time_s) / arrival.num_tokens
            latencies.extend([share] * arrival.num_tokens)
        return latencies

    def gaps_s(self) -> list[float]:
        """The pauses between arrivals, undivided: what somebody who reads along sees."""
        return [after.time_s - before.time_s for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]
