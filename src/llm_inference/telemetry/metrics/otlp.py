"""The same metrics, sent by OTLP over HTTP to whoever collects them, for places where nobody scrapes.

Names, labels and bounds are those of /metrics, so that dashboards fit both; the three histograms that OpenTelemetry's
conventions for generative AI have a name for are sent under that name, too. Sums are cumulative since the start of this
process. Where to, how often and with which headers the standard OTEL_* variables say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llm_inference.errors import ConfigError
from llm_inference.telemetry.metrics.exposition import flattened
from llm_inference.telemetry.metrics.snapshot import Bars, Labels, Snapshot
from llm_inference.telemetry.metrics.table import BY_NAME, METRICS, Metric
from llm_inference.telemetry.otel import CLOSE_S, aside, make_resource, require
from llm_inference.version import __version__

logger = logging.getLogger(__name__)

_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS: Final = 60_000.0
#: Our metric → OpenTelemetry's name for it.
_GEN_AI: Final = {
    "request_duration_seconds": "gen_ai.server.request.duration",
    "time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
}
_OPERATIONS: Final = {"/chat/completions": "chat", "/completions": "text_completion", "/embeddings": "embeddings"}


def check_installed() -> None:
    """Raises `ConfigError` where a package is missing, or the interval makes no sense: before a model is loaded."""
    require(
        "telemetry.otlp_metrics",
        "opentelemetry.sdk.metrics.export",
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    )
    _interval_s()


class OtlpMetrics:
    """Sends what `read` gives, again and again. Raises what `check_installed` raises."""

    def __init__(self, read: Callable[[], Awaitable[Snapshot]]) -> None:
        check_installed()
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._read = read
        self._interval_s = _interval_s()
        self._exporter = OTLPMetricExporter()
        self._begun_ns = time.time_ns()
        self._resource = make_resource()
        self._failing = False

    async def run(self) -> None:
        """Until cancelled. Who does not take them is a line in the log, once."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.send()

    async def send(self) -> None:
        """Once; what goes wrong is logged."""
        try:
            data = self._data(await self._read(), time.time_ns())
            result = await aside(lambda: self._exporter.export(data))
            failed = result.name != "SUCCESS"
        except Exception:
            if not self._failing:
                logger.exception("metrics could not be sent")
            failed = True
        if failed and not self._failing:
            logger.warning("nobody takes our metrics over OTLP; trying again every %g s", self._interval_s)
        self._failing = failed

    async def close(self) -> None:
        """The last figures go out, as far as that takes no longer than a few seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.send(), CLOSE_S)
        await asyncio.to_thread(self._exporter.shutdown)

    def _data(self, snapshot: Snapshot, now_ns: int) -> Any:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        metrics = _Points(self._begun_ns, now_ns).metrics(snapshot)
        scope = ScopeMetrics(InstrumentationScope("llm_inference", __version__), list(metrics), "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


@dataclass(frozen=True, slots=True)
class _Points:
    """From a snapshot to the SDK's values."""

    begun_ns: int
    now_ns: int

    def metrics(self, snapshot: Snapshot) -> Iterator[Any]:
        whole = flattened(snapshot)
        values = {**whole.counters, **whole.gauges}
        for metric in METRICS:
            if metric.kind == "histogram":
                series = whole.histograms.get(metric.name)
                if series:
                    yield self._histogram(metric.full_name, metric, _named(metric.labels, series))
            elif samples := values.get(metric.name):
                yield self._plain(metric, _named(metric.labels, samples))
        for name, theirs in _GEN_AI.items():
            if known := [one for one in _gen_ai(BY_NAME[name], whole.histograms.get(name, ())) if one is not None]:
                yield self._histogram(theirs, BY_NAME[name], known)

    def _plain(self, metric: Metric, samples: Iterable[tuple[dict[str, str], float]]) -> Any:
        from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, NumberDataPoint, Sum
        from opentelemetry.sdk.metrics.export import Metric as Sent

        counts = metric.kind == "counter"
        begun = self.begun_ns if counts else None
        points = [NumberDataPoint(labels, begun, self.now_ns, float(value)) for labels, value in samples]  # type: ignore[arg-type,unused-ignore]
        data = Sum(points, AggregationTemporality.CUMULATIVE, True) if counts else Gauge(points)
        return Sent(metric.full_name, metric.help, _unit(metric.name), data)

    def _histogram(self, name: str, metric: Metric, series: Iterable[tuple[dict[str, str], Bars]]) -> Any:
        from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint
        from opentelemetry.sdk.metrics.export import Metric as Sent

        points = [
            HistogramDataPoint(
                attributes=labels,
                start_time_unix_nano=self.begun_ns,
                time_unix_nano=self.now_ns,
                count=sum(bars.counts),
                sum=bars.total,
                bucket_counts=tuple(bars.counts),
                explicit_bounds=tuple(map(float, metric.buckets)),
                min=None,  # not known of what is counted in bars
                max=None,
            )
            for labels, bars in series
        ]
        return Sent(name, metric.help, _unit(metric.name), Histogram(points, AggregationTemporality.CUMULATIVE))


def _named(names: Sequence[str], samples: Iterable[tuple[Labels, Any]]) -> list[tuple[dict[str, str], Any]]:
    return [(dict(zip(names, labels, strict=True)), value) for labels, value in samples]


def _gen_ai(metric: Metric, series: Iterable[tuple[Labels, Bars]]) -> Iterator[tuple[dict[str, str], Bars] | None]:
    """Under the conventions' attributes; None: of no model, or no operation that they know."""
    for values, bars in series:
        labels = dict(zip(metric.labels, values, strict=True))
        attributes = {"gen_ai.provider.name": "llm_inference", "gen_ai.request.model": labels["model"]}
        if "route" in labels:
            operation = next((word for end, word in _OPERATIONS.items() if labels["route"].endswith(end)), None)
            if operation is None:
                yield None
                continue
            attributes["gen_ai.operation.name"] = operation
        yield (attributes, bars) if labels["model"] else None


def _unit(name: str) -> str:
    """As UCUM has it, for the units that names end with."""
    base = name.removesuffix("_total")
    for ending, unit in (("seconds", "s"), ("bytes", "By"), ("tokens", "{token}"), ("ratio", "1"), ("watts", "W")):
        if base.endswith(ending):
            return unit
    return ""


def _interval_s() -> float:
    text = os.environ.get(_INTERVAL, "")
    if not text:
        return _INTERVAL_MS / 1000
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ConfigError(f"{_INTERVAL}: must be a number of milliseconds above 0, not {text!r}")
    return value / 1000
