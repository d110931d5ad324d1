"""The rules through promtool: their form, and when they fire. Without promtool the tests are skipped (CI has it)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_inference.config.telemetry import AlertsConfig
from llm_inference.deploy import monitoring
from llm_inference.deploy.alerts import alerts, metric
from llm_inference.telemetry.metrics.table import BY_NAME
from tests.deploy.tools import run, tool

LIMITS = AlertsConfig()
P = "llm_inference_"
TTFT = f"{P}time_to_first_token_seconds"
E2E = f"{P}request_duration_seconds"
REQUESTS = f'{P}requests_total{{model="m",route="/r",status='

#: alert → series of 12 hours in steps of a minute, at which it fires.
FIRING: dict[str, dict[str, str]] = {
    "LlmErrors": {f'{REQUESTS}"200"}}': "0+90x720", f'{REQUESTS}"500"}}': "0+10x720"},
    "LlmErrorsCritical": {f'{REQUESTS}"200"}}': "0+50x720", f'{REQUESTS}"500"}}': "0+50x720"},
    "LlmAbsent": {"another": "1x720"},
    "LlmNotReady": {f'{P}engine_ready{{model="m"}}': "0x720"},
    "LlmSlowFirstToken": {
        f'{TTFT}_bucket{{model="m",le="1.0"}}': "0+98x720",
        f'{TTFT}_bucket{{model="m",le="2.56"}}': "0+100x720",
        f'{TTFT}_bucket{{model="m",le="+Inf"}}': "0+100x720",
    },
    "LlmSlowRequests": {
        f'{E2E}_bucket{{model="m",route="/r",le="20.0"}}': "0+98x720",
        f'{E2E}_bucket{{model="m",route="/r",le="80.0"}}': "0+100x720",
        f'{E2E}_bucket{{model="m",route="/r",le="+Inf"}}': "0+100x720",
    },
    "LlmFirstTokenBurnFast": {
        f'{TTFT}_bucket{{model="m",le="1.0"}}': "0+80x720",
        f'{TTFT}_count{{model="m"}}': "0+100x720",
    },
    "LlmFirstTokenBurnSlow": {
        f'{TTFT}_bucket{{model="m",le="1.0"}}': "0+90x720",
        f'{TTFT}_count{{model="m"}}': "0+100x720",
    },
    "LlmQueueGrows": {f'{P}num_requests_waiting{{model="m"}}': "0+1x720"},
    "LlmKvCacheFull": {
        f'{P}kv_cache_usage_ratio{{model="m"}}': "0.97x720",
        f'{P}preemptions_total{{model="m"}}': "0+6x720",
    },
    "LlmEngineRestarts": {f'{P}engine_restarts_total{{model="m"}}': "0x718 1x2"},
    "LlmNoTokens": {
        f'{P}num_requests_running{{model="m"}}': "3x720",
        f'{P}engine_steps_total{{model="m"}}': "0+100x600 60000x120",
    },
    "LlmPrefixHitsCollapse": {
        f'{P}prefix_cache_queries_total{{model="m"}}': "0+100x720",
        f'{P}prefix_cache_hits_total{{model="m"}}': "0+80x700 56000+10x20",
    },
    "LlmRefused": {f'{REQUESTS}"200"}}': "0+80x720", f'{REQUESTS}"429"}}': "0+20x720"},
    "LlmGpuMemory": {
        f'{P}gpu_memory_used_bytes{{gpu="0",name="x"}}': "96x720",
        f'{P}gpu_memory_bytes{{gpu="0",name="x"}}': "100x720",
    },
    "LlmGoldenAgreement": {f'{P}golden_agreement_ratio{{model="m"}}': "0.5x720"},
}
#: A service that is well: nothing fires.
WELL = {
    f'{REQUESTS}"200"}}': "0+100x720",
    f"{P}requests_in_flight": "3x720",
    f'{P}engine_ready{{model="m"}}': "1x720",
    f'{TTFT}_bucket{{model="m",le="0.64"}}': "0+99.9x720",
    f'{TTFT}_bucket{{model="m",le="1.0"}}': "0+100x720",
    f'{TTFT}_bucket{{model="m",le="+Inf"}}': "0+100x720",
    f'{TTFT}_count{{model="m"}}': "0+100x720",
    f'{P}num_requests_waiting{{model="m"}}': "2x720",
    f'{P}num_requests_running{{model="m"}}': "3x720",
    f'{P}engine_steps_total{{model="m"}}': "0+100x720",
    f'{P}engine_restarts_total{{model="m"}}': "1x720",
    f'{P}kv_cache_usage_ratio{{model="m"}}': "0.97x720",
    f'{P}preemptions_total{{model="m"}}': "0x720",
    f'{P}prefix_cache_queries_total{{model="m"}}': "0+100x720",
    f'{P}prefix_cache_hits_total{{model="m"}}': "0+80x720",
    f'{P}gpu_memory_used_bytes{{gpu="0",name="x"}}': "90x720",
    f'{P}gpu_memory_bytes{{gpu="0",name="x"}}': "100x720",
    f'{P}golden_agreement_ratio{{model="m"}}': "0.99x720",
}


def test_rules_are_named_once_and_say_what() -> None:
    rules = yaml.safe_load(monitoring.rules(LIMITS))["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) == len(alerts(LIMITS))
    assert all(rule["annotations"]["summary"].endswith(".") for rule in rules)
    assert {rule["labels"]["severity"] for rule in rules} == {"warning", "critical"}


def test_every_metric_is_in_the_table() -> None:
    named = {name for alert in alerts(LIMITS) for name in re.findall(r"\bllm_inference_(\w+)", alert.expression)}
    assert len(named) > 10
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in named} <= BY_NAME.keys()
    with pytest.raises(KeyError):
        metric("made_up_total")


def test_thresholds_are_the_configurations() -> None:
    text = monitoring.rules(AlertsConfig(ttft_p99_s=7.5, gpu_memory_ratio=0.42))
    assert "> 7.5" in text
    assert "> 0.42" in text
    assert "> 7.5" not in monitoring.rules(LIMITS)


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(monitoring.rules(LIMITS))
    assert f"{len(alerts(LIMITS))} rules found" in run(tool("promtool"), "check", "rules", str(file))


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    assert FIRING.keys() == {alert.name for alert in alerts(LIMITS)}
    tests = [_test(series, [name]) for name, series in FIRING.items()]
    (tmp_path / "rules.yaml").write_text(monitoring.rules(LIMITS))
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in run(tool("promtool"), "test", "rules", "tests.yaml", cwd=tmp_path)


def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(monitoring.rules(LIMITS))
    tests = [_test(WELL, [], [alert.name for alert in alerts(LIMITS)])]
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in run(tool("promtool"), "test", "rules", "tests.yaml", cwd=tmp_path)


def _test(series: dict[str, str], firing: list[str], silent: list[str] | None = None) -> dict[str, Any]:
    """promtool compares whole alerts, so the expression counts them: it fires or not, whatever its labels are."""
    expected = [(name, 1) for name in firing] + [(name, 0) for name in silent or []]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": "12h",
                "exp_samples": [{"labels": "{}", "value": number}],
            }
            for name, number in expected
        ],
    }
