"""From a snapshot to families of prometheus_client, and on to the text that is scraped. A family without samples is
left out: what is unknown is absent, not zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from llm_inference.telemetry.metrics.snapshot import Bars, Labels, Snapshot, merged
from llm_inference.telemetry.metrics.table import BY_NAME, METRICS, VLLM_LABELS, Metric

#: What `text` is.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
VLLM_CACHE_CONFIG = "vllm:cache_config_info"


def text(snapshot: Snapshot, *, vllm: bool, others: Iterable[Family] = ()) -> bytes:
    """The text that a Prometheus server scrapes. `vllm`: once more under vLLM's names."""
    return bytes(generate_latest(_Collected([*families(snapshot, vllm=vllm), *others])))


def families(snapshot: Snapshot, *, vllm: bool) -> Iterator[Family]:
    whole = flattened(snapshot)
    values = {**whole.counters, **whole.gauges}
    for metric in METRICS:
        if metric.kind == "histogram":
            series = whole.histograms.get(metric.name)
            if series:
                yield histogram(metric.full_name, metric, metric.labels, series)
        else:
            samples = values.get(metric.name)
            if samples:
                yield _plain(metric.full_name, metric, metric.labels, samples)
    if vllm:
        yield from _vllm(whole, values)


def histogram(name: str, metric: Metric, labels: Sequence[str], series: Iterable[tuple[Labels, Bars]]) -> Family:
    family = HistogramMetricFamily(name, metric.help, labels=labels)
    bounds = [*(repr(float(bound)) for bound in metric.buckets), "+Inf"]
    for values, bars in series:
        family.add_metric(values, list(zip(bounds, accumulate(bars.counts), strict=True)), bars.total)
    return family


def _plain(name: str, metric: Metric, labels: Sequence[str], samples: Iterable[tuple[Labels, float]]) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.help, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _vllm(whole: Snapshot, values: dict[str, list[tuple[Labels, float]]]) -> Iterator[Family]:
    """Of everything that is some model's; labels that vLLM does not have are summed over."""
    for metric in METRICS:
        if not metric.vllm:
            continue
        places = [place for place, label in enumerate(metric.labels) if label in VLLM_LABELS]
        labels = [*(VLLM_LABELS[metric.labels[place]] for place in places), "engine"]

        def known_to_vllm(key: Labels, places: list[int] = places) -> Labels:
            return (*(key[place] for place in places), "0")

        parts = [
            Snapshot(counters={metric.name: [(known_to_vllm(key), value)]})
            for key, value in values.get(metric.name, ())
            if key[0]
        ]
        parts += [
            Snapshot(histograms={metric.name: [(known_to_vllm(key), bars)]})
            for key, bars in whole.histograms.get(metric.name, ())
            if key[0]
        ]
        summed = merged(parts)
        for name in metric.vllm if parts else ():
            if metric.kind == "histogram":
                yield histogram(name, metric, labels, summed.histograms[metric.name])
            else:
                yield _plain(name, metric, labels, summed.counters[metric.name])
    yield from _vllm_cache_config(values)


def _vllm_cache_config(values: dict[str, list[tuple[Labels, float]]]) -> Iterator[Family]:
    """Always 1; endpoint pickers read from its labels how much a cache holds."""
    sizes = {key[0]: size for key, size in values.get("kv_cache_block_tokens", ())}
    known = [(key[0], sizes[key[0]], count) for key, count in values.get("kv_cache_blocks", ()) if key[0] in sizes]
    if not known:
        return
    labels = ["model_name", "engine", "block_size", "num_gpu_blocks", "kv_cache_size_tokens"]
    family = GaugeMetricFamily(VLLM_CACHE_CONFIG, "The size of the KV cache, in its labels.", labels=labels)
    for model, size, count in known:
        family.add_metric([model, "0", f"{size:.0f}", f"{count:.0f}", f"{size * count:.0f}"], 1.0)
    yield family


def flattened(snapshot: Snapshot) -> Snapshot:
    """Engines and processes as samples with labels."""
    engines: dict[str, list[tuple[Labels, float]]] = {}
    bars: dict[str, list[tuple[Labels, Bars]]] = {}
    for model, report in snapshot.engines.items():
        for name, value in report.values.items():
            engines.setdefault(name, []).append(((model,), value))
        for name, one in report.bars.items():
            if len(one.counts) == len(BY_NAME[name].buckets) + 1:
                bars.setdefault(name, []).append(((model,), one))
    for process, figures in snapshot.processes.items():
        for name, value in figures.items():
            engines.setdefault(name, []).append(((process,), value))
    return Snapshot(
        counters=snapshot.counters, gauges={**snapshot.gauges, **engines}, histograms={**snapshot.histograms, **bars}
    )


class _Collected:
    """Families as prometheus_client's writer wants them."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families
