from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from llm_inference.engine.base import EngineStats
from llm_inference.telemetry.metrics import Metrics


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


def test_registries_are_separate() -> None:
    Metrics(CollectorRegistry())
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)
