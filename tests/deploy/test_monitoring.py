"""Rules and panels name metrics that exist, in a language that Prometheus reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from llm_inference.deploy import monitoring
from llm_inference.engine.base import EngineStats
from llm_inference.telemetry.metrics import Metrics
from tests.deploy.tools import VARIABLE, missing


def expressions() -> list[str]:
    rules = [rule["expr"] for group in yaml.safe_load(monitoring.rules())["groups"] for rule in group["rules"]]
    panels = json.loads(monitoring.dashboard())["panels"]
    queries = [target["expr"].replace("$__rate_interval", "5m") for panel in panels for target in panel["targets"]]
    return [*rules, *queries]


def test_every_metric_exists() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.watch_engines(lambda: {"m": EngineStats(kv_cache_usage=0.5, num_kv_blocks=1, num_free_kv_blocks=1)})
    types = re.findall(r"^# TYPE (\S+) (\w+)$", metrics.exposition().decode(), flags=re.MULTILINE)
    known = {name for name, _ in types} | {f"{name}_bucket" for name, kind in types if kind == "histogram"}
    named = {name for expression in expressions() for name in re.findall(r"\bllm_inference_\w+", expression)}
    assert len(named) > 10
    assert named - known == set()


def test_every_expression_parses() -> None:
    python = Path(os.environ.get(VARIABLE, ".")) / "venv" / "bin" / "python"
    if not python.exists():
        missing("promql-parser")
    program = "import json, sys, promql_parser\nfor one in json.load(sys.stdin): promql_parser.parse(one)"
    done = subprocess.run(
        [str(python), "-c", program], input=json.dumps(expressions()), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rules_are_named_once_and_say_what() -> None:
    rules = yaml.safe_load(monitoring.rules())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) == len(monitoring.ALERTS)
    assert all(rule["annotations"]["summary"].endswith(".") for rule in rules)
    assert {rule["labels"]["severity"] for rule in rules} == {"warning", "critical"}


@pytest.mark.parametrize("alert", [alert for alert in monitoring.ALERTS if "/" in alert.expression])
def test_no_traffic_is_no_division_by_zero(alert: monitoring.Alert) -> None:
    assert re.search(r"/ \(sum\(rate\(\w+\[5m\]\)\) > 0\)", alert.expression)
