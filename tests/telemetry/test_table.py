"""The table, by the conventions of the field, and what is documented of it."""

from __future__ import annotations

import re

import msgspec

from llm_inference.engine.base import EngineStats
from llm_inference.telemetry.metrics.table import BY_NAME, ENGINE_FIELDS, METRICS


def test_names_are_after_the_conventions() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z_]+", metric.name)
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert all(name.startswith("vllm:") for name in metric.vllm)
        assert all(not name.endswith("_total") or metric.kind in ("counter", "histogram") for name in metric.vllm)


def test_labels_are_bounded_words() -> None:
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels == {
        "model", "route", "status", "finish_reason", "tier", "replica", "reason", "outcome", "version", "process",
        "gpu", "name", "clock",
    }  # fmt: skip


def test_every_field_of_an_engine_is_one_and_is_read() -> None:
    fields = {field.name for field in msgspec.structs.fields(EngineStats)}
    assert set(ENGINE_FIELDS.values()) <= fields
    assert set(ENGINE_FIELDS) <= {metric.name for metric in METRICS if metric.origin == "engine"}
    # Those that the gateway counts itself, and what says how to read the rest.
    assert fields - set(ENGINE_FIELDS.values()) == {"prompt_tokens", "known", "per_process"}
