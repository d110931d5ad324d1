"""`Metrics`: what a gateway process counts and measures, and what it reads elsewhere whenever somebody scrapes.

The event loop is its only user but for counters, which other threads may raise too. Recording is on the way of every
token: a dictionary, a bisection and an addition.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from llm_inference.telemetry.metrics import exposition
from llm_inference.telemetry.metrics.machine import Machine
from llm_inference.telemetry.metrics.snapshot import Bars, EngineReport, Labels, Snapshot
from llm_inference.telemetry.metrics.table import BY_NAME, ENGINE_FIELDS, METRICS

#: Of a label whose values are words of this server, but not in a list that anybody keeps.
_MAX_REASONS = 64


class EngineLoad(Protocol):
    """The part of an engine's statistics that is exported; fields as in `ENGINE_FIELDS` (`engine.base.EngineStats`)."""

    @property
    def per_process(self) -> bool:
        """Counted by this process alone; otherwise every process sees the same figures of the whole engine."""
        ...

    @property
    def known(self) -> tuple[str, ...] | None:
        """Fields that mean something; None: all that are not None."""
        ...


class Metrics:
    """Make one per registry: a second one on the same registry is an error of prometheus_client.

    `process` names this process in metrics. `machine` reads the kernel and the driver; None: nothing of them.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        vllm: bool = False,
        process: str = "gateway",
        machine: Machine | None = None,
    ) -> None:
        self._vllm = vllm
        self._process = process
        self._machine = machine
        self._registry = registry
        self._scraping = False
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Bars]] = {}
        self._gauges: dict[str, Callable[[], Mapping[Labels, float]]] = {}
        self._read_counters: dict[str, Callable[[], Mapping[Labels, float]]] = {}
        self._loads: Callable[[], Mapping[str, EngineLoad]] = dict
        self._pids: Callable[[], Mapping[str, int]] = dict
        self._once: dict[str, list[tuple[Labels, float]]] = {}
        self._refresh: list[Callable[[], Awaitable[None]]] = []
        self._together: Callable[[Snapshot], Awaitable[Snapshot]] | None = None
        # Looked up by model at every token.
        self._ttft = self._histograms.setdefault("time_to_first_token_seconds", {})
        self._inter_token = self._histograms.setdefault("inter_token_latency_seconds", {})
        self._ttft_bounds = BY_NAME["time_to_first_token_seconds"].buckets
        self._inter_token_bounds = BY_NAME["inter_token_latency_seconds"].buckets
        if registry is not None:
            registry.register(self)

    # --- on the way of a request

    def first_token(self, model: str, seconds: float) -> None:
        bars = self._ttft.get((model,)) or _bars(self._ttft, (model,), self._ttft_bounds)
        bars.counts[bisect_left(self._ttft_bounds, seconds)] += 1
        bars.total += seconds

    def inter_token(self, model: str, seconds: float) -> None:
        bars = self._inter_token.get((model,)) or _bars(self._inter_token, (model,), self._inter_token_bounds)
        bars.counts[bisect_left(self._inter_token_bounds, seconds)] += 1
        bars.total += seconds

    def refused(self, reason: str) -> None:
        """`reason` is an error code or the name of a limit, never a key's or a client's name."""
        self._count_reason("refusals_total", reason)

    def rejected(self, reason: str) -> None:
        """`reason` is the error code of a 429, 503 or 504."""
        self._count_reason("rejections_total", reason)

    def in_ledger(self, outcome: str, num_requests: int) -> None:
        """`outcome`: written, summed or lost."""
        self.count("ledger_requests_total", (outcome,), num_requests)

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
        tier: str = "",
        replica: str = "",
    ) -> None:
        """Once per request, at its end. `model` and `route` are "" where none was recognised."""
        of_model = (model,)
        self.count("requests_total", (model, route, str(status)))
        self.observe("request_duration_seconds", (model, route), duration_s)
        if aborted:
            self.count("requests_aborted_total", of_model)
        if prompt_tokens:
            self.count("prompt_tokens_total", of_model, prompt_tokens)
            self.observe("request_prompt_tokens", of_model, prompt_tokens)
        if completion_tokens:
            self.count("completion_tokens_total", of_model, completion_tokens)
            self.observe("request_completion_tokens", of_model, completion_tokens)
        if cached_tokens:
            self.count("cached_tokens_total", of_model, cached_tokens)
        if tier:
            self.count("tier_requests_total", (model, tier, str(status)))
        if replica:
            self.count("replica_requests_total", (model, replica, str(status)))

    def phases(self, model: str, *, queue_s: float, ttft_s: float, total_s: float) -> None:
        """As the engine measured them, from the moment it accepted the request; see `engine.types.Timing`."""
        of_model = (model,)
        self.observe("request_queue_seconds", of_model, queue_s)
        self.observe("request_prefill_seconds", of_model, max(ttft_s - queue_s, 0.0))
        self.observe("request_decode_seconds", of_model, max(total_s - ttft_s, 0.0))
        self.observe("request_inference_seconds", of_model, max(total_s - queue_s, 0.0))

    # --- by the name in the table

    def count(self, name: str, labels: Labels = (), amount: float = 1) -> None:
        """Raise a counter. `labels` in the table's order; values must be such as the table's docstring allows."""
        with self._lock:
            series = self._counters.get(name)
            if series is None:
                series = self._counters[BY_NAME[name].name] = {}
            series[labels] = series.get(labels, 0) + amount

    def observe(self, name: str, labels: Labels, value: float) -> None:
        bounds = BY_NAME[name].buckets
        series = self._histograms.setdefault(name, {})
        bars = series.get(labels) or _bars(series, labels, bounds)
        bars.counts[bisect_left(bounds, value)] += 1
        bars.total += value

    def watch(self, name: str, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Read a gauge from `read` at every scrape; of several processes the sum is shown."""
        self._gauges[BY_NAME[name].name] = read

    def watch_counter(self, name: str, read: Callable[[], Mapping[Labels, float]]) -> None:
        """Read a counter that somebody else raises; like any other it must never fall."""
        self._read_counters[BY_NAME[name].name] = read

    def watch_in_flight(self, read: Callable[[], int]) -> None:
        self.watch("requests_in_flight", lambda: {(): float(read())})

    def watch_engines(self, read: Callable[[], Mapping[str, EngineLoad]]) -> None:
        """Export the load of each engine, by model name, as `read` gives it at every scrape."""
        self._loads = read

    def watch_processes(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Further processes to report on: name → process id."""
        self._pids = read

    def set_once(self, name: str, values: Mapping[Labels, float]) -> None:
        """A gauge of something that exists once, however many gateway processes there are: whoever answers shows it."""
        self._once[BY_NAME[name].name] = list(values.items())

    def set_health(self, models: Mapping[str, tuple[bool, bool]]) -> None:
        """(ready, progressing) of each model."""
        self.set_once("engine_ready", {(model,): float(ready) for model, (ready, _) in models.items()})
        self.set_once("engine_progressing", {(model,): float(moving) for model, (_, moving) in models.items()})

    def before_scrape(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Awaited by `scrape`, in the process that answers alone; it bounds its own time."""
        self._refresh.append(refresh)

    def share(self, together: Callable[[Snapshot], Awaitable[Snapshot]]) -> None:
        """From now on `scrape` shows what `together` makes of this process's snapshot: the sum over all."""
        self._together = together

    # --- reading

    def snapshot(self) -> Snapshot:
        """This process's own figures."""
        with self._lock:
            counters = {name: list(series.items()) for name, series in self._counters.items()}
        counters |= {name: list(read().items()) for name, read in self._read_counters.items()}
        histograms = {
            name: [(labels, Bars(list(bars.counts), bars.total)) for labels, bars in series.items()]
            for name, series in self._histograms.items()
        }
        gauges = {name: list(read().items()) for name, read in self._gauges.items()}
        processes: dict[str, dict[str, float]] = {}
        if self._machine is not None:
            processes = self._machine.processes({self._process: self._machine.pid, **self._pids()})
        engines = {model: engine_report(load) for model, load in self._loads().items()}
        return Snapshot(counters, histograms, gauges, engines, processes)

    async def whole(self) -> Snapshot:
        """The figures of all gateway processes together, and of the machine."""
        for refresh in self._refresh:
            await refresh()
        snapshot = self.snapshot()
        if self._together is not None:
            snapshot = await self._together(snapshot)
        return self._with_machine(snapshot)

    async def scrape(self) -> bytes:
        """The text that a Prometheus server scrapes."""
        snapshot = await self.whole()
        others = () if self._registry is None else self._others(self._registry)
        return exposition.text(snapshot, vllm=self._vllm, others=others)

    def exposition(self) -> bytes:
        """Like `scrape`, of this process alone and as far as it knows without asking anybody."""
        return exposition.text(self._with_machine(self.snapshot()), vllm=self._vllm)

    def collect(self) -> Iterator[Family]:
        """For prometheus_client's registry; nothing while `scrape` asks it for what is not ours."""
        if self._scraping:
            return iter(())
        return exposition.families(self._with_machine(self.snapshot()), vllm=self._vllm)

    def describe(self) -> Iterable[Family]:
        """All names at once, so that a second `Metrics` on a registry is refused."""
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        return [kinds[metric.kind](metric.full_name, metric.help, labels=metric.labels) for metric in METRICS]

    def _with_machine(self, snapshot: Snapshot) -> Snapshot:
        """What exists once, however many processes we are."""
        snapshot.gauges.setdefault("gateway_workers", [((), 1.0)])
        snapshot.gauges.update(self._once)
        if self._machine is not None:
            snapshot.gauges.update(self._machine.once())
        return snapshot

    def _others(self, registry: CollectorRegistry) -> Iterator[Family]:
        """Families that somebody else has registered beside ours."""
        self._scraping = True
        try:
            yield from registry.collect()
        finally:
            self._scraping = False

    def _count_reason(self, name: str, reason: str) -> None:
        series = self._counters.get(name, {})
        if (reason,) not in series and len(series) >= _MAX_REASONS:
            reason = "other"
        self.count(name, (reason,))


def engine_report(load: EngineLoad) -> EngineReport:
    """The figures that `load` knows."""
    report = EngineReport(shared=not load.per_process, values={}, bars={})
    for name, field in ENGINE_FIELDS.items():
        value = getattr(load, field, None)
        if value is None or (load.known is not None and field not in load.known):
            continue
        if BY_NAME[name].kind == "histogram":
            report.bars[name] = Bars(list(value.counts), float(value.total))
        else:
            report.values[name] = float(value)
    return report


def _bars(series: dict[Labels, Bars], labels: Labels, bounds: tuple[float, ...]) -> Bars:
    bars = series[labels] = Bars([0] * (len(bounds) + 1))
    return bars
