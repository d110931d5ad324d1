from __future__ import annotations

from pathlib import Path

from llm_inference.tools.bench.slo import Slo
from llm_inference.tools.bench.table import render
from tests.tools.bench.test_report import report_of
from tests.tools.bench.timelines import failed, timeline


def test_every_figure_has_its_line() -> None:
    report = report_of(
        timeline((1.0, 1), (2.0, 1), cached_tokens=3),
        failed("http_503", "full", ended_s=2.0),
        slo=Slo.parse(["ttft:1500"]),
        notes=("a note",),
    )
    lines = render(report).splitlines()
    assert "requests              1 done, 1 failed" in lines
    assert "requests/s            0.50" in lines
    assert "output tokens/s       1.0" in lines
    assert "total tokens/s        6.0" in lines
    assert "input tokens          10 (3 cached), by usage" in lines
    assert "goodput               1 of 2 requests (50.0%), 0.50/s within ttft:1500 ms" in lines
    heading = next(line for line in lines if line.startswith("milliseconds"))
    assert heading.split() == ["milliseconds", "mean", "p50", "p90", "p99", "max"]
    first = next(line for line in lines if line.startswith("time to first token"))
    assert first.split()[-5:] == ["1,000.00"] * 5
    assert "  1 × http_503: full" in lines
    assert lines[-2:] == ["notes", "  a note"]
    assert "load     closed loop of 8; input 256, output 128 tokens" in lines
    assert "  from schedule" not in render(report)


def test_a_schedule_shows_both_views() -> None:
    report = report_of(
        timeline((1.0, 1), sent_s=0.5, scheduled_s=0.0), request_rate=2.0, burstiness=0.5, concurrency=4, duration_s=9.0
    )
    text = render(report)
    assert "2 requests/s on a schedule, burstiness 0.5, at most 4 in flight, for 9 s" in text
    assert text.count("  from schedule") == 2
    assert "wait at the client" in text
    assert "warnings" in text


def test_nothing_done_is_a_table_still() -> None:
    text = render(report_of(failed("connection", "refused"), prefix_len=5))
    assert "0 done, 1 failed" in text
    assert "prefix 5 + 256" in text
    assert "refused" in text


def test_a_dataset_is_named() -> None:
    assert "prompts of d.jsonl" in render(report_of(timeline((1.0, 1)), dataset=Path("d.jsonl")))
