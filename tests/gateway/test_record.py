from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from llm_inference.engine.types import Delta, Timing, Usage
from llm_inference.gateway.record import RequestRecord
from llm_inference.telemetry.metrics import Metrics


def line_of(record: RequestRecord, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    caplog.set_level(logging.INFO, "llm_inference.gateway.request")
    record.finish()
    (entry,) = caplog.records
    return dict(entry.fields)  # type: ignore[attr-defined]


def test_deltas_become_times_and_reasons(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    record = RequestRecord("id", Metrics(registry), route="/x", model="m", status=200)
    record.saw(Delta(text="a", token_ids=(1,)))
    record.saw(Delta(index=1, text="b", token_ids=(2,), finish_reason="length"))
    record.saw(Delta(finish_reason="stop", timing=Timing(0.25, 0.5, 1.0)))
    record.usage = Usage(7, 2, 3)
    line = line_of(record, caplog)
    assert line["finish_reason"] == "length,stop"
    assert (line["queue_s"], line["prompt_tokens"], line["cached_tokens"]) == (0.25, 7, 3)
    assert registry.get_sample_value("llm_inference_time_to_first_token_seconds_count", {"model": "m"}) == 1
    assert registry.get_sample_value("llm_inference_inter_token_latency_seconds_count", {"model": "m"}) == 1
    assert registry.get_sample_value("llm_inference_cached_tokens_total", {"model": "m"}) == 3


@pytest.mark.parametrize(("aborted", "status"), [(True, 499), (False, 500)])
def test_response_that_never_began(aborted: bool, status: int, caplog: pytest.LogCaptureFixture) -> None:
    record = RequestRecord("id", Metrics(CollectorRegistry()), aborted=aborted)
    line = line_of(record, caplog)
    assert line["status"] == status
    assert line["ttft_s"] is None
    assert line["model"] is None


def test_a_path_takes_a_line_and_not_a_page(caplog: pytest.LogCaptureFixture) -> None:
    record = RequestRecord("id", Metrics(CollectorRegistry()), path="/" + "p" * 60_000, status=404)
    assert line_of(record, caplog)["path"] == "/" + "p" * 511
