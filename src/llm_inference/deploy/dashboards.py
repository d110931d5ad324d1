"""Grafana dashboards as JSON, made from the table of metrics: overview, engine, tenants, hardware.

The data source is chosen by a variable, and so are the models. Of what a service does not have (GPUs, tiers) the panels
stay empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_inference.deploy.alerts import metric, ratio
from llm_inference.telemetry.metrics.table import BY_NAME

_WINDOW = "$__rate_interval"
_MODEL = 'model=~"$model"'


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are (PromQL, legend). `unit` is Grafana's word."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""


def _rate(name: str, by: str, title: str = "", *, label: str | None = None, unit: str = "short") -> Panel:
    """Of a counter, per second."""
    legend = label or " ".join(f"{{{{{one}}}}}" for one in by.split(", "))
    return Panel(title or BY_NAME[name].help, unit, ((_rate_of(name, by), legend),), BY_NAME[name].help)


def _rate_of(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric(name)}{_chosen(name)}[{_WINDOW}]))"


def _chosen(name: str) -> str:
    return f"{{{_MODEL}}}" if "model" in BY_NAME[name].labels else ""


def _quantiles(name: str, title: str, *, unit: str = "s") -> Panel:
    bucket = f"{metric(name, '_bucket')}{{{_MODEL}}}"
    return Panel(
        title,
        unit,
        tuple(
            (
                f"histogram_quantile({share:g}, sum by (le, model) (rate({bucket}[{_WINDOW}])))",
                f"{{{{model}}}} p{share * 100:g}",
            )
            for share in (0.5, 0.95, 0.99)
        ),
        BY_NAME[name].help,
    )


def _gauge(name: str, by: str, title: str, *, how: str = "sum", unit: str = "short") -> Panel:
    legend = " ".join(f"{{{{{one}}}}}" for one in by.split(", ")) if by else title
    inside = f"{metric(name)}{_chosen(name)}"
    query = f"{how} by ({by}) ({inside})" if by else f"{how}({inside})"
    return Panel(title, unit, ((query, legend),), BY_NAME[name].help)


def _mean(name: str, title: str) -> Panel:
    total, number = (
        f"sum by (model) (rate({metric(name, part)}{{{_MODEL}}}[{_WINDOW}]))" for part in ("_sum", "_count")
    )
    return Panel(title, "short", ((ratio(total, number), "{{model}}"),), BY_NAME[name].help)


def _share(part: str, whole: str, title: str) -> Panel:
    query = ratio(_rate_of(part, "model"), _rate_of(whole, "model"))
    return Panel(title, "percentunit", ((query, "{{model}}"),), f"{BY_NAME[part].help} Of: {BY_NAME[whole].help}")


_TENANTS_PER_TIER = "model, tier"
_GPU = "gpu, name"

#: By name: title and panels, two in a row.
DASHBOARDS: Mapping[str, tuple[str, tuple[Panel, ...]]] = {
    "overview": (
        "llm-inference: overview",
        (
            _rate("requests_total", "status", "Requests per second", unit="reqps"),
            _gauge("requests_in_flight", "", "In flight"),
            _quantiles("time_to_first_token_seconds", "Time to first token"),
            _quantiles("inter_token_latency_seconds", "Between two tokens"),
            _quantiles("request_duration_seconds", "End to end"),
            Panel(
                "Tokens per second",
                "short",
                tuple(
                    (_rate_of(name, "model"), f"{{{{model}}}} {word}")
                    for name, word in (
                        ("completion_tokens_total", "generated"),
                        ("prompt_tokens_total", "prompt"),
                        ("cached_tokens_total", "cached"),
                    )
                ),
                "Generated, prompt and cached tokens.",
            ),
            Panel(
                "Running and waiting",
                "short",
                tuple(
                    (f"sum by (model) ({metric(name)}{{{_MODEL}}})", f"{{{{model}}}} {word}")
                    for name, word in (("num_requests_running", "running"), ("num_requests_waiting", "waiting"))
                ),
                "Sequences in the batch, and requests that wait for a place in it.",
            ),
            _gauge("engine_ready", "model", "Ready instances"),
            _rate("finished_choices_total", "model, finish_reason", "How answers end"),
            _rate("requests_aborted_total", "model", "Clients that left"),
            _rate("rejections_total", "reason", "Turned away for want of room"),
            _gauge("golden_agreement_ratio", "tier", "Agreement with the best tier", how="min", unit="percentunit"),
        ),
    ),
    "engine": (
        "llm-inference: engine",
        (
            _quantiles("request_queue_seconds", "In the engine's queue"),
            _quantiles("request_prefill_seconds", "Prefill"),
            _quantiles("request_decode_seconds", "Decode"),
            _quantiles("time_per_output_token_seconds", "Time per output token"),
            _gauge("kv_cache_usage_ratio", "model", "KV cache in use", how="max", unit="percentunit"),
            _gauge("kv_cache_free_blocks", "model", "Free KV blocks"),
            _share("prefix_cache_hits_total", "prefix_cache_queries_total", "Prefix cache hit rate"),
            _rate("preemptions_total", "model", "Preemptions"),
            _rate("engine_steps_total", "model", "Steps per second"),
            _mean("step_tokens", "Tokens per step"),
            _mean("step_sequences", "Batch size"),
            _share(
                "speculation_accepted_tokens_total", "speculation_drafted_tokens_total", "Drafted tokens that stood"
            ),
            _quantiles("request_prompt_tokens", "Length of prompts", unit="short"),
            _quantiles("request_completion_tokens", "Length of answers", unit="short"),
            _rate("engine_restarts_total", "model", "Restarts"),
            _rate("kv_cache_evictions_total", "model", "Evictions from the prefix cache"),
        ),
    ),
    "tenants": (
        "llm-inference: tenants",
        (
            _rate("refusals_total", "reason", "Refused for who sent them"),
            _rate("ledger_requests_total", "outcome", "Requests in the ledger"),
            _rate("tier_requests_total", _TENANTS_PER_TIER, "Requests by tier", unit="reqps"),
            _rate("replica_requests_total", "model, replica", "Requests by replica", unit="reqps"),
            _rate("requests_total", "model", "Requests by model", unit="reqps"),
            _gauge("admission_queue_depth", "", "Waiting at the gateway"),
        ),
    ),
    "hardware": (
        "llm-inference: hardware",
        (
            _rate("process_cpu_seconds_total", "process", "CPUs in use, by process"),
            _gauge("process_resident_memory_bytes", "process", "Resident memory, by process", unit="bytes"),
            Panel(
                "Memory of the cgroup",
                "bytes",
                (
                    (f"sum({metric('cgroup_memory_bytes')})", "in use"),
                    (f"sum({metric('cgroup_memory_limit_bytes')})", "limit"),
                ),
                BY_NAME["cgroup_memory_bytes"].help,
            ),
            Panel(
                "CPUs of the cgroup",
                "short",
                (
                    (f"sum(rate({metric('cgroup_cpu_seconds_total')}[{_WINDOW}]))", "in use"),
                    (f"sum({metric('cgroup_cpu_limit_cores')})", "limit"),
                    (f"sum(rate({metric('cgroup_cpu_throttled_seconds_total')}[{_WINDOW}]))", "throttled"),
                ),
                BY_NAME["cgroup_cpu_seconds_total"].help,
            ),
            _gauge("process_open_fds", "process", "Open files and sockets"),
            _gauge("process_threads", "process", "Threads"),
            _gauge("gpu_utilization_ratio", _GPU, "GPU use", how="max", unit="percentunit"),
            Panel(
                "GPU memory in use",
                "percentunit",
                ((f"{metric('gpu_memory_used_bytes')} / {metric('gpu_memory_bytes')}", "{{gpu}} {{name}}"),),
                BY_NAME["gpu_memory_used_bytes"].help,
            ),
            _gauge("gpu_power_watts", _GPU, "GPU power", unit="watt"),
            _gauge("gpu_temperature_celsius", _GPU, "GPU temperature", how="max", unit="celsius"),
            _gauge("gpu_clock_hertz", "gpu, name, clock", "GPU clocks", how="max", unit="hertz"),
        ),
    ),
}


def dashboards() -> dict[str, str]:
    """Each as JSON, by its name."""
    return {name: json.dumps(_board(name, *board), indent=2) + "\n" for name, board in DASHBOARDS.items()}


def _board(name: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    models = f"label_values({metric('num_requests_running')}, model)"
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "uid": f"llm-inference-{name}",
        "title": title,
        "tags": ["llm-inference"],
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["llm-inference"], "title": "llm-inference", "asDropdown": True}],
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
                {
                    "name": "model",
                    "type": "query",
                    "label": "Model",
                    "datasource": source,
                    "query": {"query": models, "refId": "models"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_drawn(index, panel, source) for index, panel in enumerate(panels)],
    }


def _drawn(index: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": {"x": index % 2 * 12, "y": index // 2 * 8, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }
