"""Metrics as a real OTLP receiver gets them, against the same figures at /metrics."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from llm_inference.engine.base import EngineStats
from llm_inference.errors import ConfigError
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.metrics.otlp import OtlpMetrics, check_installed
from llm_inference.telemetry.metrics.snapshot import Snapshot
from tests.telemetry.otlp_receiver import MetricsReceiver, receiving

CUMULATIVE = 2


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsReceiver]:
    pytest.importorskip("opentelemetry.sdk.metrics.export")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with receiving() as one:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=night")
        monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
        yield one


def filled() -> Metrics:
    metrics = Metrics(CollectorRegistry(), vllm=True)
    for route, seconds in (("/v1/chat/completions", 0.3), ("/v1/completions", 3.0), ("/v1/models", 0.001)):
        metrics.request_finished(
            model="m" if "completions" in route else "",
            route=route,
            status=200,
            duration_s=seconds,
            aborted=False,
            prompt_tokens=10,
            completion_tokens=5,
            cached_tokens=4,
        )
    metrics.first_token("m", 0.05)
    metrics.observe("time_per_output_token_seconds", ("m",), 0.02)
    metrics.watch_engines(lambda: {"m": EngineStats(num_running=3, kv_cache_usage=0.5, num_preemptions=7)})
    return metrics


async def test_they_are_those_of_the_scrape(receiver: MetricsReceiver) -> None:
    metrics = filled()
    otlp = OtlpMetrics(metrics.whole)
    await otlp.send()
    families = {family.name: family for family in text_string_to_metric_families((await metrics.scrape()).decode())}
    ours = {name for name in families if not name.startswith("vllm:")}
    sent = receiver.metrics()
    assert {name.removesuffix("_total") for name in sent if not name.startswith("gen_ai.")} == ours
    for name, metric in sent.items():
        kind = metric.WhichOneof("data")
        family = families.get(name.removesuffix("_total"))
        if family is None:
            continue
        assert {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[family.type] == kind
        assert metric.description == family.documentation
        for labels, point in receiver.points(name):
            samples = {
                (sample.name, sample.labels.get("le")): sample.value
                for sample in family.samples
                if {key: value for key, value in sample.labels.items() if key != "le"} == labels
            }
            if kind == "histogram":
                assert point.count == samples[(f"{name}_count", None)]
                assert point.sum == pytest.approx(samples[(f"{name}_sum", None)])
                below = 0
                for bound, count in zip([*map(str, point.explicit_bounds), "+Inf"], point.bucket_counts, strict=True):
                    below += count
                    assert below == samples[(f"{name}_bucket", bound)]
                assert not point.HasField("min")
            else:
                assert point.as_double == samples[(name, None)]
        if kind == "sum":
            assert metric.sum.aggregation_temporality == CUMULATIVE
            assert metric.sum.is_monotonic
    head = receiver.heads[-1]
    assert (head["path"], head["x-team"]) == ("/v1/metrics", "night")
    assert receiver.resource()["service.name"] == "llm-inference"
    await otlp.close()
    assert len(receiver.requests) == 2, "the last figures go out"


async def test_the_names_of_the_conventions(receiver: MetricsReceiver) -> None:
    otlp = OtlpMetrics(filled().whole)
    await otlp.send()
    durations = {
        labels["gen_ai.operation.name"]: (labels, p) for labels, p in receiver.points("gen_ai.server.request.duration")
    }
    assert durations.keys() == {"chat", "text_completion"}
    labels, point = durations["chat"]
    assert labels["gen_ai.request.model"] == "m"
    assert labels["gen_ai.provider.name"] == "llm_inference"
    assert point.sum == pytest.approx(0.3)
    assert [point.sum for _, point in receiver.points("gen_ai.server.time_to_first_token")] == [0.05]
    assert [point.sum for _, point in receiver.points("gen_ai.server.time_per_output_token")] == [0.02]
    assert receiver.metrics()["gen_ai.server.request.duration"].unit == "s"
    await otlp.close()


async def test_again_and_again_as_often_as_the_variable_says(
    receiver: MetricsReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    otlp = OtlpMetrics(filled().whole)
    running = asyncio.create_task(otlp.run())
    while len(receiver.requests) < 3:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    [first, later] = [
        request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points[0] for request in receiver.requests[:2]
    ]
    assert first.start_time_unix_nano == later.start_time_unix_nano < first.time_unix_nano < later.time_unix_nano
    await otlp.close()


async def test_a_receiver_that_refuses_is_one_line(receiver: MetricsReceiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.status = 400
    otlp = OtlpMetrics(filled().whole)
    with caplog.at_level(logging.WARNING, "llm_inference"):
        await otlp.send()
        await otlp.send()
        assert [one.message for one in caplog.records if one.name.startswith("llm_inference")] == [
            "nobody takes our metrics over OTLP; trying again every 60 s"
        ]
        receiver.status = 200
        await otlp.send()
        receiver.status = 400
        await otlp.send()
    assert len([one for one in caplog.records if one.name.startswith("llm_inference")]) == 2
    await otlp.close()


async def test_figures_that_cannot_be_read_do_not_end_the_sending(
    receiver: MetricsReceiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    whole, broken = filled().whole, [OSError("no file"), OSError("no file")]

    async def read() -> Snapshot:
        if broken:
            raise broken.pop()
        return await whole()

    otlp = OtlpMetrics(read)
    running = asyncio.create_task(otlp.run())
    while not receiver.requests:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await otlp.close()
    assert [one.message for one in caplog.records if one.exc_info] == ["metrics could not be sent"]


async def test_a_receiver_that_says_nothing_holds_no_thread_of_the_loop(
    receiver: MetricsReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of an event loop waits for the threads of its pool."""
    otlp = OtlpMetrics(filled().whole)
    from opentelemetry.sdk.metrics.export import MetricExportResult

    answered = threading.Event()
    threads: list[threading.Thread] = []

    def export(data: object) -> MetricExportResult:
        threads.append(threading.current_thread())
        answered.wait(60)
        return MetricExportResult.SUCCESS

    monkeypatch.setattr(otlp._exporter, "export", export)
    sending = asyncio.create_task(otlp.send())
    while not threads:
        await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert threads[0].daemon
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 30)
    assert threads[0].is_alive()
    answered.set()
    threads[0].join()


@pytest.mark.parametrize("text", ["often", "0", "-5", "nan"])
def test_an_interval_that_makes_no_sense(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", text)
    with pytest.raises(ConfigError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        check_installed()


def test_without_the_packages_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics.export", None)
    with pytest.raises(ConfigError, match=r"telemetry.otlp_metrics: .*install llm-inference\[otel\]"):
        check_installed()
