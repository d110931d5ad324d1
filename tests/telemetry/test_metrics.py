from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from llm_inference.engine.base import EngineStats, StepSizes
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.metrics.table import BY_NAME


def finished(metrics: Metrics, **changes: object) -> None:
    fields: dict[str, object] = {
        "model": "m",
        "route": "/v1/x",
        "status": 200,
        "duration_s": 0.3,
        "aborted": False,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 4,
        **changes,
    }
    metrics.request_finished(**fields)  # type: ignore[arg-type]


def test_requests_and_tokens() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    finished(metrics)
    finished(metrics, status=503, prompt_tokens=0, completion_tokens=0, cached_tokens=0)
    finished(metrics, aborted=True, status=499)
    value = registry.get_sample_value
    for status, number in (("200", 1), ("503", 1), ("499", 1)):
        labels = {"model": "m", "route": "/v1/x", "status": status}
        assert value("llm_inference_requests_total", labels) == number
    labels = {"model": "m"}
    assert value("llm_inference_prompt_tokens_total", labels) == 20
    assert value("llm_inference_completion_tokens_total", labels) == 10
    assert value("llm_inference_cached_tokens_total", labels) == 8
    assert value("llm_inference_requests_aborted_total", labels) == 1
    buckets = {"model": "m", "route": "/v1/x", "le": "0.25"}
    assert value("llm_inference_request_duration_seconds_bucket", buckets) == 0
    assert value("llm_inference_request_duration_seconds_bucket", {**buckets, "le": "0.5"}) == 3


def test_latencies() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.first_token("m", 0.05)
    metrics.inter_token("m", 0.004)
    metrics.inter_token("m", 0.006)
    assert registry.get_sample_value("llm_inference_time_to_first_token_seconds_sum", {"model": "m"}) == 0.05
    assert registry.get_sample_value("llm_inference_inter_token_latency_seconds_count", {"model": "m"}) == 2
    edges = {"model": "m", "le": "0.005"}
    assert registry.get_sample_value("llm_inference_inter_token_latency_seconds_bucket", edges) == 1


def test_engines_are_read_at_scrape_time() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    loads: dict[str, EngineStats] = {}
    calls = []

    def read() -> dict[str, EngineStats]:
        calls.append(True)
        return loads

    metrics.watch_engines(read)
    assert calls == []
    loads["a"] = EngineStats(num_running=3, num_waiting=2, kv_cache_usage=0.5, num_preemptions=7, num_restarts=1)
    loads["b"] = EngineStats()
    value = registry.get_sample_value
    assert value("llm_inference_num_requests_running", {"model": "a"}) == 3
    assert value("llm_inference_num_requests_waiting", {"model": "a"}) == 2
    assert value("llm_inference_kv_cache_usage_ratio", {"model": "a"}) == 0.5
    assert value("llm_inference_kv_cache_usage_ratio", {"model": "b"}) is None  # unknown is not zero
    assert value("llm_inference_preemptions_total", {"model": "a"}) == 7
    assert value("llm_inference_engine_restarts_total", {"model": "a"}) == 1
    assert calls


def test_in_flight_is_read_at_scrape_time() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    now = [0]
    metrics.watch_in_flight(lambda: now[0])
    now[0] = 5
    assert registry.get_sample_value("llm_inference_requests_in_flight") == 5


def test_exposition_is_well_formed_and_well_named() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.watch_engines(lambda: {"m": EngineStats(num_running=1, kv_cache_usage=0.1)})
    finished(metrics, model='quote " and \\ and \n')
    families = list(text_string_to_metric_families(metrics.exposition().decode()))
    assert len(families) > 15
    for family in families:
        assert re.fullmatch(r"llm_inference_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert {label for sample in family.samples for label in sample.labels} <= {"model", "route", "status", "le"}
    names = {sample.labels["model"] for family in families for sample in family.samples if "model" in sample.labels}
    assert 'quote " and \\ and \n' in names


def test_buckets_are_cumulative_and_bounds_belong_to_them() -> None:
    """The same values in prometheus_client's own histogram."""
    bounds = BY_NAME["request_queue_seconds"].buckets
    registry, reference = CollectorRegistry(), CollectorRegistry()
    metrics = Metrics(registry)
    theirs = Histogram("reference", "Reference.", buckets=bounds, registry=reference)
    for seconds in (0.0, 0.005, 0.0051, 0.3, 1, 81.92, 1000):
        metrics.observe("request_queue_seconds", ("m",), seconds)
        theirs.observe(seconds)
    for bound in (*map(float, bounds), "+Inf"):
        expected = reference.get_sample_value("reference_bucket", {"le": str(bound)})
        labels = {"model": "m", "le": str(bound)}
        assert registry.get_sample_value("llm_inference_request_queue_seconds_bucket", labels) == expected
    total = registry.get_sample_value("llm_inference_request_queue_seconds_sum", {"model": "m"})
    assert total == pytest.approx(reference.get_sample_value("reference_sum"))


def test_under_the_names_of_vllm() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, vllm=True)
    metrics.watch_engines(lambda: {"m": EngineStats(num_waiting=3, kv_cache_usage=0.5, step_tokens=None)})
    finished(metrics)
    finished(metrics, route="/v1/y")
    finished(metrics, model="", status=404)
    metrics.count("finished_choices_total", ("m", "stop"), 2)
    metrics.phases("m", queue_s=0.1, ttft_s=0.4, total_s=1.4)
    value, labels = registry.get_sample_value, {"model_name": "m", "engine": "0"}
    assert value("vllm:num_requests_waiting", labels) == 3
    assert value("vllm:kv_cache_usage_perc", labels) == value("vllm:gpu_cache_usage_perc", labels) == 0.5
    assert value("vllm:prompt_tokens_total", labels) == 20
    assert value("vllm:request_success_total", {**labels, "finished_reason": "stop"}) == 2
    assert value("vllm:e2e_request_latency_seconds_count", labels) == 2  # both routes; no model, no request of vLLM's
    assert value("vllm:request_prefill_time_seconds_sum", labels) == pytest.approx(0.3)
    assert value("vllm:request_inference_time_seconds_sum", labels) == pytest.approx(1.3)
    assert value("vllm:time_per_output_token_seconds_count", labels) is None  # no token has come
    metrics.inter_token("m", 0.02)
    assert value("vllm:time_per_output_token_seconds_count", labels) == 1  # as it was called before
    assert value("vllm:inter_token_latency_seconds_count", labels) == 1
    assert "vllm:" not in Metrics(CollectorRegistry()).exposition().decode()


def test_drafts_and_how_many_stood() -> None:
    registry = CollectorRegistry()
    Metrics(registry, vllm=True).watch_engines(lambda: {"m": EngineStats(num_drafted_tokens=9, num_accepted_tokens=4)})
    value, labels = registry.get_sample_value, {"model_name": "m", "engine": "0"}
    assert value("llm_inference_speculation_drafted_tokens_total", {"model": "m"}) == 9
    assert value("llm_inference_speculation_accepted_tokens_total", {"model": "m"}) == 4
    assert value("vllm:spec_decode_num_draft_tokens_total", labels) == 9
    assert value("vllm:spec_decode_num_accepted_tokens_total", labels) == 4


def test_the_size_of_the_cache_as_an_endpoint_picker_reads_it() -> None:
    metrics = Metrics(CollectorRegistry(), vllm=True)
    loads = {"m": EngineStats(num_kv_blocks=100, kv_block_size=16), "far": EngineStats(num_running=1)}
    metrics.watch_engines(lambda: loads)
    [family] = [
        one
        for one in text_string_to_metric_families(metrics.exposition().decode())
        if one.name == "vllm:cache_config_info"
    ]
    assert family.type == "gauge"
    [sample] = family.samples
    assert sample.value == 1
    assert sample.labels == {
        "model_name": "m",
        "engine": "0",
        "block_size": "16",
        "num_gpu_blocks": "100",
        "kv_cache_size_tokens": "1600",
    }
    del loads["m"]
    assert "cache_config_info" not in metrics.exposition().decode()


def test_what_an_engine_does_not_know_is_absent() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.watch_engines(lambda: {"m": EngineStats(num_running=2, known=("num_running",))})
    value = registry.get_sample_value
    assert value("llm_inference_num_requests_running", {"model": "m"}) == 2
    assert value("llm_inference_num_requests_waiting", {"model": "m"}) is None
    assert value("llm_inference_prefix_cache_hits_total", {"model": "m"}) is None


def test_steps_of_an_engine() -> None:
    registry = CollectorRegistry()
    counts = (1, 2, *[0] * (len(BY_NAME["step_tokens"].buckets) - 1))
    Metrics(registry).watch_engines(lambda: {"m": EngineStats(step_tokens=StepSizes(counts, 5))})
    labels = {"model": "m", "le": "2.0"}
    assert registry.get_sample_value("llm_inference_step_tokens_bucket", labels) == 3
    assert registry.get_sample_value("llm_inference_step_tokens_sum", {"model": "m"}) == 5


def test_tiers_replicas_and_reasons() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    finished(metrics, tier="int8", replica="m/0")
    value = registry.get_sample_value
    assert value("llm_inference_tier_requests_total", {"model": "m", "tier": "int8", "status": "200"}) == 1
    assert value("llm_inference_replica_requests_total", {"model": "m", "replica": "m/0", "status": "200"}) == 1
    for number in range(200):
        metrics.rejected(f"reason {number}")
    metrics.rejected("reason 3")
    assert value("llm_inference_rejections_total", {"reason": "reason 3"}) == 2
    assert value("llm_inference_rejections_total", {"reason": "other"}) == 136


async def test_others_on_the_registry_are_scraped_too() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    Gauge("somebody_elses", "Of a plug-in.", registry=registry).set(4)
    text = (await metrics.scrape()).decode()
    assert "somebody_elses 4.0" in text
    assert text.count("# TYPE llm_inference_gateway_workers ") == 1


def test_a_name_that_is_not_in_the_table_is_refused() -> None:
    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.count("made_up_total")
    with pytest.raises(KeyError):
        metrics.watch("made_up", dict)


def test_registries_are_separate() -> None:
    Metrics(CollectorRegistry())
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)
