"""A report as text for a terminal. Knows nothing of how its figures came about."""

from __future__ import annotations

from collections.abc import Iterator

from llm_inference.tools.bench.report import Report
from llm_inference.tools.bench.statistics import Summary

_LATENCIES = {
    "ttft_s": "time to first token",
    "ttft_scheduled_s": "  from schedule",
    "itl_s": "inter-token latency",
    "gap_s": "gap between chunks",
    "tpot_s": "time per output token",
    "e2el_s": "end to end",
    "e2el_scheduled_s": "  from schedule",
    "queue_s": "wait at the client",
}
_COLUMNS = ("mean", "p50", "p90", "p99", "max")


def render(report: Report) -> str:
    """Several lines, the last of which ends in a line feed."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    settings, tokens = report.settings, report.tokens
    version = f" {report.server.version}" if report.server.version else ""
    yield f"{report.server.model} at {settings['url']} ({settings['endpoint']}){version}"
    yield f"load     {_load(report)}"
    yield f"prompts  {report.prompts_from}; seed {settings['seed']}, temperature 0"
    yield ""
    yield _figure("requests", f"{report.num_requests - report.num_failed:,} done, {report.num_failed:,} failed")
    yield _figure("duration", f"{report.duration_s:,.2f} s, at most {report.max_in_flight:,} in flight")
    yield _figure("requests/s", f"{report.requests_per_s:,.2f}")
    yield _figure("output tokens/s", f"{report.output_tokens_per_s:,.1f}")
    yield _figure("total tokens/s", f"{report.total_tokens_per_s:,.1f}")
    yield _figure("input tokens", f"{tokens.input_tokens:,} ({tokens.cached_tokens:,} cached), by {tokens.input_from}")
    yield _figure("output tokens", f"{tokens.output_tokens:,}, by {tokens.output_from}")
    if report.goodput is not None:
        good = report.goodput
        yield _figure(
            "goodput",
            f"{good.num_good:,} of {report.num_requests:,} requests ({good.share:.1%}), {good.requests_per_s:,.2f}/s "
            f"within {good.slo} ms",
        )
    yield ""
    yield f"{'milliseconds':<22}" + "".join(f"{column:>11}" for column in _COLUMNS)
    for name, label in _LATENCIES.items():
        if name in report.latencies:
            yield f"{label:<22}" + "".join(f"{value:>11,.2f}" for value in _milliseconds(report.latencies[name]))
    yield f"(tokens per chunk by {tokens.per_chunk_from})"
    if report.failures:
        yield ""
        yield "failures"
        for kind, failure in report.failures.items():
            yield f"  {failure.count:,} × {kind}: {failure.example}"
    for heading, lines in (("warnings", report.warnings), ("notes", report.notes)):
        if lines:
            yield ""
            yield heading
            yield from (f"  {line}" for line in lines)


def _load(report: Report) -> str:
    settings = report.settings
    if settings["request_rate"] is None:
        load = f"closed loop of {settings['concurrency']}"
    else:
        shape = "" if settings["burstiness"] == 1 else f", burstiness {settings['burstiness']:g}"
        load = f"{settings['request_rate']:g} requests/s on a schedule{shape}"
        if settings["concurrency"] is not None:
            load += f", at most {settings['concurrency']} in flight"
    if settings["duration_s"] is not None:
        load += f", for {settings['duration_s']:g} s"
    if settings["dataset"] is not None:
        return f"{load}; prompts of {settings['dataset']}"
    prefix = f"prefix {settings['prefix_len']} + " if settings["prefix_len"] else ""
    return f"{load}; input {prefix}{settings['input_len']}, output {settings['output_len']} tokens"


def _figure(label: str, text: str) -> str:
    return f"{label:<22}{text}"


def _milliseconds(one: Summary) -> list[float]:
    return [getattr(one, column) * 1000 for column in _COLUMNS]
