from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llm_inference.tools.bench.report import ClientFacts, Report, ServerFacts, make_report
from llm_inference.tools.bench.settings import BenchSettings
from llm_inference.tools.bench.slo import Slo
from llm_inference.tools.bench.statistics import summary
from llm_inference.tools.bench.timeline import Timeline
from tests.tools.bench.timelines import failed, timeline

CALM = [0.001] * 100


def report_of(*timelines: Timeline, lags: list[float] = CALM, notes: tuple[str, ...] = (), **settings: Any) -> Report:
    return make_report(
        BenchSettings(url="http://h", **settings),
        timelines,
        started_at="2026-01-01T00:00:00+00:00",
        server=ServerFacts(model="m"),
        client=ClientFacts(versions={}, platform="p", num_cpus=2, cpu_share=0.5, loop_lag_s=summary(lags)),
        prompts_from="words",
        notes=notes,
    )


def test_totals_worked_out_by_hand() -> None:
    report = report_of(
        timeline((1.0, 1), (2.0, 2), cached_tokens=4),
        timeline((3.0, 1), (4.0, 1), ended_s=5.0),
        failed("timeout", ended_s=4.0),
        slo=Slo.parse(["e2el:2000"]),
    )
    assert (report.num_requests, report.num_failed, report.ok) == (3, 1, False)
    assert report.duration_s == 5.0
    assert (report.tokens.input_tokens, report.tokens.cached_tokens, report.tokens.output_tokens) == (20, 4, 5)
    assert (report.requests_per_s, report.output_tokens_per_s, report.total_tokens_per_s) == (0.4, 1.0, 5.0)
    assert report.goodput is not None
    assert (report.goodput.num_good, report.goodput.requests_per_s) == (1, 0.2)
    assert report.failures["timeout"].count == 1
    assert report.max_in_flight == 3
    assert report.latencies["ttft_s"].mean == 2.0
    assert "ttft_scheduled_s" not in report.latencies


def test_a_failure_that_lasts_longest_counts_in_the_duration() -> None:
    assert report_of(timeline((1.0, 1)), failed("timeout", ended_s=9.0)).requests_per_s == pytest.approx(1 / 9)


def test_nothing_done_is_not_ok() -> None:
    report = report_of()
    assert (report.ok, report.duration_s, report.requests_per_s, report.latencies) == (False, 0.0, 0.0, {})
    assert report.tokens.input_from == "none"
    assert not report_of(failed("connection")).ok


def test_who_counted() -> None:
    told = timeline((1.0, 1))
    untold = timeline((1.0, 1), input_tokens=None, planned_input_tokens=30, usage_told=False, counting="chunks")
    assert report_of(told).tokens.output_from == "usage"
    tokens = report_of(untold).tokens
    assert (tokens.input_tokens, tokens.input_from, tokens.output_from) == (30, "planned", "chunks")
    assert tokens.per_chunk_from == "chunks"
    mixed = report_of(told, untold).tokens
    assert (mixed.input_tokens, mixed.input_from, mixed.output_from, mixed.per_chunk_from) == (40, *["mixed"] * 3)


def test_a_late_event_loop_is_a_warning() -> None:
    assert report_of(timeline((1.0, 1))).warnings == ()
    (warning,) = report_of(timeline((1.0, 1)), lags=[0.0] * 50 + [0.02] * 50).warnings
    assert "20.0 ms" in warning
    assert "50%" in warning


def test_waiting_at_the_client_is_a_warning() -> None:
    late = timeline((1.0, 1), sent_s=0.5, scheduled_s=0.1)
    (warning,) = report_of(late, request_rate=1.0).warnings
    assert "400.0 ms" in warning
    assert report_of(late).warnings == ()  # a closed loop has no schedule


def test_what_did_not_come_out_as_asked_is_a_note() -> None:
    report = report_of(
        timeline((1.0, 1), max_tokens=5),
        timeline((1.0, 5), max_tokens=5, planned_input_tokens=12),
        timeline((1.0, 1), (2.0, 1), max_tokens=4, output_tokens=4, counting="chunks", planned_input_tokens=10),
        notes=("first",),
    )
    first, short, other, merged = report.notes
    assert first == "first"
    assert short.startswith("1 answers have fewer tokens")
    assert other.startswith("1 prompts have another number")
    assert merged.startswith("in 1 answers")
    assert report_of(timeline((1.0, 1), max_tokens=5), ignore_eos=False).notes == ()


def test_json_has_the_rows_only_if_asked() -> None:
    report = report_of(timeline((1.0, 1), (2.5, 2)), failed("timeout"), api_key="secret")
    short = msgspec.json.decode(report.to_json())
    assert short["requests"] == []
    assert short["latencies"]["ttft_s"]["p50"] == 1.0
    assert short["settings"]["url"] == "http://h"
    assert b"secret" not in report.to_json(with_requests=True)
    rows = msgspec.json.decode(report.to_json(with_requests=True))["requests"]
    assert rows[0]["arrivals"] == [[1.0, 1], [2.5, 2]]
    assert rows[1]["failure"] == {"kind": "timeout", "detail": "said so"}
    assert msgspec.json.decode(report.to_json(with_requests=True), type=Report) == report
