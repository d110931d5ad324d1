"""Prometheus metrics of the gateway and of the engines behind it, on a registry that is given.

Names have one prefix, `llm_inference_`, and the base units seconds, bytes, tokens and ratios. Label values are served
models, route templates and statuses: nothing that a client can invent. This module knows no HTTP and no engine; load
figures are read through `EngineLoad` at scrape time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

#: What `exposition` returns.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)


class EngineLoad(Protocol):
    """The part of an engine's statistics that is exported (`engine.base.EngineStats` has it all)."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def kv_cache_usage(self) -> float | None: ...
    @property
    def num_kv_blocks(self) -> int | None: ...
    @property
    def num_free_kv_blocks(self) -> int | None: ...
    @property
    def prefix_cache_queries(self) -> int: ...
    @property
    def prefix_cache_hits(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_evictions(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_restarts(self) -> int: ...


class Metrics:
    """All instruments. Make one per registry: a second one on the same registry is an error of prometheus_client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._requests = Counter(
            "llm_inference_requests",
            "Finished HTTP requests.",
            ("model", "route", "status"),
            registry=registry,
        )
        self._duration = Histogram(
            "llm_inference_request_duration_seconds",
            "From the request's first byte to its last byte out.",
            ("model", "route"),
            buckets=_DURATION_BUCKETS,
            registry=registry,
        )
        self._ttft = Histogram(
            "llm_inference_time_to_first_token_seconds",
            "From the request's first byte to its first token.",
            ("model",),
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._inter_token = Histogram(
            "llm_inference_inter_token_latency_seconds",
            "Between two consecutive deltas of a request.",
            ("model",),
            buckets=_INTER_TOKEN_BUCKETS,
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "llm_inference_prompt_tokens", "Prompt tokens, cached ones included.", ("model",), registry=registry
        )
        self._cached_tokens = Counter(
            "llm_inference_cached_tokens", "Prompt tokens found in the prefix cache.", ("model",), registry=registry
        )
        self._completion_tokens = Counter(
            "llm_inference_completion_tokens", "Generated tokens.", ("model",), registry=registry
        )
        self._aborted = Counter(
            "llm_inference_requests_aborted",
            "Requests whose client left before the end.",
            ("model",),
            registry=registry,
        )
        self._refused = Counter(
            "llm_inference_refusals",
            "Requests refused for who sent them: no valid key, no right, over a limit.",
            ("reason",),
            registry=registry,
        )
        self._ledger_rows = Counter(
            "llm_inference_ledger_requests",
            "Requests in the ledger: a row each, in a row of sums (the queue was full), or lost.",
            ("outcome",),
            registry=registry,
        )
        self._in_flight = Gauge("llm_inference_requests_in_flight", "Requests that hold a permit.", registry=registry)

    def first_token(self, model: str, seconds: float) -> None:
        self._ttft.labels(model).observe(seconds)

    def inter_token(self, model: str, seconds: float) -> None:
        self._inter_token.labels(model).observe(seconds)

    def refused(self, reason: str) -> None:
        """`reason` is an error code or the name of a limit, never a key's or a client's name."""
        self._refused.labels(reason).inc()

    def in_ledger(self, outcome: str, num_requests: int) -> None:
        """`outcome`: written, summed or lost."""
        self._ledger_rows.labels(outcome).inc(num_requests)

    def request_finished(
        self,
        *,
        model: str,
        route: str,
        status: int,
        duration_s: float,
        aborted: bool,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int,
    ) -> None:
        """Once per request, at its end. `model` and `route` are "" where none was recognised."""
        self._requests.labels(model, route, str(status)).inc()
        self._duration.labels(model, route).observe(duration_s)
        if aborted:
            self._aborted.labels(model).inc()
        if prompt_tokens:
            self._prompt_tokens.labels(model).inc(prompt_tokens)
        if completion_tokens:
            self._completion_tokens.labels(model).inc(completion_tokens)
        if cached_tokens:
            self._cached_tokens.labels(model).inc(cached_tokens)

    def watch_in_flight(self, read: Callable[[], int]) -> None:
        """Read the gauge from `read` at every scrape."""
        self._in_flight.set_function(read)

    def watch_engines(self, read: Callable[[], Mapping[str, EngineLoad]]) -> None:
        """Export the load of each engine, by model name, as `read` gives it at every scrape."""
        self._registry.register(_EngineCollector(read))

    def exposition(self) -> bytes:
        """The text that a Prometheus server scrapes."""
        return generate_latest(self._registry)


class _EngineCollector:
    def __init__(self, read: Callable[[], Mapping[str, EngineLoad]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing: without it the registry would call `collect`, and so the engines, at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        loads = self._read()
        for suffix, text, pick in _GAUGES:
            gauge = GaugeMetricFamily(f"llm_inference_{suffix}", text, labels=("model",))
            for model, load in loads.items():
                value = pick(load)
                if value is not None:  # unknown is absent, not zero
                    gauge.add_metric((model,), value)
            yield gauge
        for suffix, text, count in _COUNTERS:
            counter = CounterMetricFamily(f"llm_inference_{suffix}", text, labels=("model",))
            for model, load in loads.items():
                counter.add_metric((model,), count(load))
            yield counter


_GAUGES: tuple[tuple[str, str, Callable[[EngineLoad], float | None]], ...] = (
    ("num_requests_running", "Sequences in the running batch.", lambda load: load.num_running),
    ("num_requests_waiting", "Requests that wait for a seat or for KV blocks.", lambda load: load.num_waiting),
    ("kv_cache_usage_ratio", "Share of the KV blocks in use, 0 to 1.", lambda load: load.kv_cache_usage),
    ("kv_cache_blocks", "KV blocks in all.", lambda load: load.num_kv_blocks),
    ("kv_cache_free_blocks", "KV blocks that nothing references.", lambda load: load.num_free_kv_blocks),
)

_COUNTERS: tuple[tuple[str, str, Callable[[EngineLoad], float]], ...] = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda load: load.prefix_cache_queries),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda load: load.prefix_cache_hits),
    ("preemptions", "Running sequences sent back to wait for want of KV blocks.", lambda load: load.num_preemptions),
    ("kv_cache_evictions", "Cached KV blocks given to other content.", lambda load: load.num_evictions),
    ("engine_steps", "Forward passes.", lambda load: load.num_steps),
    ("engine_restarts", "Restarts of the engine after a crash.", lambda load: load.num_restarts),
)
