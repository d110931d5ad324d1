"""The result of a benchmark: figures, what they were measured with, and everything that went wrong or is in doubt.

A plain value: it is made by `make_report` from timelines, and neither prints nor writes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from llm_inference.tools.bench.settings import BenchSettings
from llm_inference.tools.bench.statistics import (
    FailureCount,
    Goodput,
    Summary,
    failure_counts,
    goodput,
    latencies,
    peak_in_flight,
    per_second,
    summary,
)
from llm_inference.tools.bench.timeline import Timeline

#: Above this (99th percentile), latencies of a few milliseconds cannot be trusted.
MAX_LOOP_LAG_S = 0.005


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    max_model_len: int | None = None
    version: str | None = None


class ClientFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu_share` is of one core; `loop_lag_s` how late the client's own event loop woke up."""

    versions: dict[str, str]
    platform: str
    num_cpus: int
    cpu_share: float
    loop_lag_s: Summary | None


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`*_from` say who counted: "usage" (the server), "planned" (we, before), "chunks" (one a chunk), "mixed"."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    input_from: str
    output_from: str
    per_chunk_from: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. Rates and latencies are over the requests that succeeded; `failures` has all others."""

    started_at: str  # UTC, ISO 8601
    settings: dict[str, Any]
    server: ServerFacts
    client: ClientFacts
    prompts_from: str
    duration_s: float  # from the start of the load to the end of its last request
    num_requests: int
    num_failed: int
    max_in_flight: int
    tokens: TokenCounts
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    latencies: dict[str, Summary]
    goodput: Goodput | None
    failures: dict[str, FailureCount]
    warnings: tuple[str, ...]  # the figures are in doubt
    notes: tuple[str, ...]  # something else was measured than was asked for, or worth knowing
    requests: tuple[Timeline, ...]

    @property
    def ok(self) -> bool:
        """Whether every request succeeded, and there was one."""
        return self.num_requests > 0 and self.num_failed == 0

    def to_json(self, *, with_requests: bool = False) -> bytes:
        """Indented JSON; `requests` has the rows only if asked for."""
        shown = self if with_requests else msgspec.structs.replace(self, requests=())
        return msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n"


def make_report(
    settings: BenchSettings,
    timelines: Sequence[Timeline],
    *,
    started_at: str,
    server: ServerFacts,
    client: ClientFacts,
    prompts_from: str,
    notes: Sequence[str] = (),
) -> Report:
    """All figures of `timelines`, whose clock starts with the load."""
    done = [one for one in timelines if one.ok]
    duration_s = max((one.ended_s for one in timelines), default=0.0)
    tokens = _token_counts(done)
    return Report(
        started_at=started_at,
        settings=settings.shown(),
        server=server,
        client=client,
        prompts_from=prompts_from,
        duration_s=duration_s,
        num_requests=len(timelines),
        num_failed=len(timelines) - len(done),
        max_in_flight=peak_in_flight(timelines),
        tokens=tokens,
        requests_per_s=per_second(len(done), duration_s),
        output_tokens_per_s=per_second(tokens.output_tokens, duration_s),
        total_tokens_per_s=per_second(tokens.input_tokens + tokens.output_tokens, duration_s),
        latencies=latencies(timelines, scheduled=settings.request_rate is not None),
        goodput=None if settings.slo is None else goodput(timelines, settings.slo, duration_s),
        failures=failure_counts(timelines),
        warnings=tuple(_warnings(client, done, settings)),
        notes=(*notes, *_notes(done, settings)),
        requests=tuple(timelines),
    )


def _token_counts(done: Sequence[Timeline]) -> TokenCounts:
    told = [one.input_tokens is not None for one in done]
    planned = sum(one.planned_input_tokens or 0 for one in done if one.input_tokens is None)
    return TokenCounts(
        input_tokens=sum(one.input_tokens or 0 for one in done) + planned,
        cached_tokens=sum(one.cached_tokens for one in done),
        output_tokens=sum(one.output_tokens for one in done),
        input_from=_which(told, "usage", "planned"),
        output_from=_which([one.usage_told for one in done], "usage", "chunks"),
        per_chunk_from=_which([one.counting == "usage" for one in done], "usage", "chunks"),
    )


def _which(flags: Sequence[bool], yes: str, no: str) -> str:
    return "none" if not flags else yes if all(flags) else "mixed" if any(flags) else no


def _warnings(client: ClientFacts, done: Sequence[Timeline], settings: BenchSettings) -> list[str]:
    warnings = []
    lag = client.loop_lag_s
    if lag is not None and lag.p99 > MAX_LOOP_LAG_S:
        warnings.append(
            f"the client's own event loop was up to {lag.p99 * 1000:.1f} ms late (p99; its CPU share was "
            f"{client.cpu_share:.0%} of a core): latencies contain the client. Give it a core of its own or less load"
        )
    queue = summary(one.queue_s for one in done) if settings.request_rate is not None else None
    if queue is not None and queue.p99 > MAX_LOOP_LAG_S:
        warnings.append(
            f"requests waited at the client for up to {queue.p99 * 1000:.1f} ms (p99) after they were due: the "
            "latencies from schedule are the users' ones"
        )
    return warnings


def _notes(done: Sequence[Timeline], settings: BenchSettings) -> list[str]:
    notes = []
    short = sum(one.max_tokens is not None and one.output_tokens < one.max_tokens for one in done)
    if short and settings.ignore_eos:
        notes.append(f"{short} answers have fewer tokens than was asked for: the server does not honour ignore_eos")
    other = sum(
        None not in (one.input_tokens, one.planned_input_tokens) and one.input_tokens != one.planned_input_tokens
        for one in done
    )
    if other:
        notes.append(f"{other} prompts have another number of tokens by the server's usage than was planned")
    merged = sum(one.counting == "chunks" and one.usage_told and _counted(one) != one.output_tokens for one in done)
    if merged:
        notes.append(
            f"in {merged} answers the number of chunks is not that of tokens: inter-token latencies are per chunk there"
        )
    return notes


def _counted(timeline: Timeline) -> int:
    return sum(arrival.num_tokens for arrival in timeline.arrivals)
