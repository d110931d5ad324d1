"""docs/operations.md against the code: metrics, fields of the request line, states, restarts."""

from __future__ import annotations

import logging
import runpy
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from llm_inference.engine.supervisor import RestartPolicy
from llm_inference.gateway.auth import OPEN_PATHS
from llm_inference.gateway.health import State
from llm_inference.gateway.record import RequestRecord
from llm_inference.telemetry.devices import thread_environment
from llm_inference.telemetry.metrics import Metrics
from llm_inference.telemetry.metrics.table import METRICS
from tests.docs.blocks import REPOSITORY, coded, section, table

DOCUMENT = REPOSITORY / "docs" / "operations.md"


def test_every_metric_is_documented() -> None:
    script = runpy.run_path(str(REPOSITORY / "scripts" / "metrics_document.py"))
    written = (REPOSITORY / "docs" / "metrics.md").read_text()
    assert written == script["document"](), "run: python scripts/metrics_document.py"
    assert all(metric.full_name in written for metric in METRICS)


def test_every_field_of_the_request_line_is_documented(caplog: pytest.LogCaptureFixture) -> None:
    record = RequestRecord("r-1", Metrics(CollectorRegistry()), method="GET", path="/x", prompt="p", error_detail="at")
    with caplog.at_level(logging.INFO, "llm_inference.gateway.request"):
        record.finish()
    written = vars(caplog.records[-1])["fields"]
    documented = [name for row in table(section(DOCUMENT, "Logs")) for name in coded(row[0])]
    assert documented == list(written)


def test_every_state_is_documented() -> None:
    text = section(DOCUMENT, "Health")
    assert [state for state in get_args(State) if state not in text] == []


def test_restarts_are_those_of_the_policy() -> None:
    policy = RestartPolicy()
    text = " ".join(section(DOCUMENT, "When the engine dies").split())
    assert f"at most {policy.max_restarts} times in {policy.window_s / 60:g} minutes" in text


def test_open_paths_are_named() -> None:
    assert set(coded(section(DOCUMENT, "Security"))) >= OPEN_PATHS


def test_thread_variables_are_named() -> None:
    text = section(DOCUMENT, "CPUs and cgroups")
    names = thread_environment(2)
    assert all(name in text for name in names)
    assert f"`GOMP_SPINCOUNT={names['GOMP_SPINCOUNT']}`" in text
