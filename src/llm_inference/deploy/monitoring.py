"""What watches the service, the same in every form: scrape configuration, alert rules, a Grafana dashboard.

The rules as data; forms that need them wrapped (a PrometheusRule, a file) take `rules`. All queries are safe against
a division by zero and name metrics that `telemetry/metrics.py` has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llm_inference.deploy.facts import DeploymentFacts
from llm_inference.deploy.quoting import yaml_scalar
from llm_inference.deploy.templating import render


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    wait: str
    severity: str
    summary: str


_ERRORS = (
    'sum(rate(llm_inference_requests_total{status=~"5.."}[5m])) / (sum(rate(llm_inference_requests_total[5m])) > 0)'
)
ALERTS = (
    Alert("LlmErrorsWarning", f"{_ERRORS} > 0.05", "10m", "warning", "More than 5 % of requests fail with 5xx."),
    Alert("LlmErrorsCritical", f"{_ERRORS} > 0.2", "5m", "critical", "More than 20 % of requests fail with 5xx."),
    Alert(
        "LlmAbsent",
        "absent(llm_inference_requests_in_flight)",
        "2m",
        "critical",
        "No instance answers scrapes: all are down or loading.",
    ),
    Alert(
        "LlmQueue",
        "sum by (model) (llm_inference_num_requests_waiting) > 0",
        "10m",
        "warning",
        "Requests have waited for 10 minutes: more load than the instances hold.",
    ),
    Alert(
        "LlmSlowFirstToken",
        "histogram_quantile(0.99, sum by (le, model) "
        "(rate(llm_inference_time_to_first_token_seconds_bucket[5m]))) > 10",
        "10m",
        "warning",
        "1 % of requests wait over 10 s for their first token.",
    ),
    Alert(
        "LlmKvCacheFull",
        "max by (model) (llm_inference_kv_cache_usage_ratio) > 0.9",
        "10m",
        "warning",
        "The KV cache is over 90 % full: more of kv_cache_memory, or more instances.",
    ),
    Alert(
        "LlmPreemptions",
        "sum by (model) (rate(llm_inference_preemptions_total[5m])) > 0.1",
        "10m",
        "warning",
        "Sequences are sent back to wait for want of KV blocks.",
    ),
    Alert(
        "LlmEngineRestarts",
        "sum by (model) (increase(llm_inference_engine_restarts_total[10m])) > 0",
        "0m",
        "warning",
        "An engine crashed and was restarted.",
    ),
    Alert(
        "LlmRefused",
        'sum(rate(llm_inference_requests_total{status=~"429|503"}[5m]))'
        " / (sum(rate(llm_inference_requests_total[5m])) > 0) > 0.05",
        "5m",
        "warning",
        "More than 5 % of requests are refused for want of room.",
    ),
)

_BY_MODEL = "sum by (model)"
#: (title, unit, queries with their legends)
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Requests", "reqps", (("sum by (status) (rate(llm_inference_requests_total[$__rate_interval]))", "{{status}}"),)),
    (
        "Time to first token",
        "s",
        tuple(
            (
                f"histogram_quantile({share}, sum by (le, model) "
                "(rate(llm_inference_time_to_first_token_seconds_bucket[$__rate_interval])))",
                f"{{{{model}}}} p{share * 100:g}",
            )
            for share in (0.5, 0.99)
        ),
    ),
    (
        "Between two tokens",
        "s",
        tuple(
            (
                f"histogram_quantile({share}, sum by (le, model) "
                "(rate(llm_inference_inter_token_latency_seconds_bucket[$__rate_interval])))",
                f"{{{{model}}}} p{share * 100:g}",
            )
            for share in (0.5, 0.99)
        ),
    ),
    (
        "Tokens per second",
        "short",
        (
            (f"{_BY_MODEL} (rate(llm_inference_completion_tokens_total[$__rate_interval]))", "{{model}} generated"),
            (f"{_BY_MODEL} (rate(llm_inference_prompt_tokens_total[$__rate_interval]))", "{{model}} prompt"),
        ),
    ),
    (
        "Running and waiting",
        "short",
        (
            (f"{_BY_MODEL} (llm_inference_num_requests_running)", "{{model}} running"),
            (f"{_BY_MODEL} (llm_inference_num_requests_waiting)", "{{model}} waiting"),
        ),
    ),
    ("KV cache in use", "percentunit", (("max by (model) (llm_inference_kv_cache_usage_ratio)", "{{model}}"),)),
)


def rules() -> str:
    """Groups of rules as Prometheus reads them from a file."""
    return render("monitoring/rules.yaml.j2", yaml_scalar, alerts=ALERTS)


def prometheus(facts: DeploymentFacts, target: str) -> str:
    """Prometheus's own configuration for one static target, `host:port`."""
    return render("monitoring/prometheus.yaml.j2", yaml_scalar, facts=facts, target=target)


def dashboard() -> str:
    """A Grafana dashboard as JSON; its data source is chosen by a variable."""
    panels = [_panel(index, *panel) for index, panel in enumerate(PANELS)]
    board: dict[str, Any] = {
        "uid": "llm-inference",
        "title": "llm-inference",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}]},
        "panels": panels,
    }
    return json.dumps(board, indent=2) + "\n"


def _panel(index: int, title: str, unit: str, queries: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": {"x": index % 2 * 12, "y": index // 2 * 8, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(queries)
        ],
    }
