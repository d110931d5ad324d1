from __future__ import annotations

import math
import time

import pytest
from prometheus_client import CollectorRegistry

from llm_inference.engine.types import Usage
from llm_inference.gateway.record import RequestRecord
from llm_inference.gateway.ui import recent as recent_module
from llm_inference.gateway.ui.recent import Percentiles, Recent, percentiles
from llm_inference.telemetry.metrics import Metrics


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics(CollectorRegistry())


def record(metrics: Metrics, **fields: object) -> RequestRecord:
    given = {"model": "m", "route": "/v1/chat/completions", "status": 200, "metered": True, **fields}
    return RequestRecord("r", metrics, **given)  # type: ignore[arg-type]


def test_percentiles_are_times_that_occurred() -> None:
    values = [float(number) for number in range(200, 0, -1)]
    assert percentiles([*values, None]) == Percentiles(100.0, 190.0, 198.0)
    assert percentiles([3.0]) == Percentiles(3.0, 3.0, 3.0)
    assert percentiles([None]) is None


def test_sums_of_the_window(metrics: Metrics) -> None:
    clock = Clock()
    recent = Recent(clock)
    recent.keep(record(metrics, usage=Usage(prompt_tokens=100, completion_tokens=10)))
    clock.now += recent_module.WINDOW_S - 1
    begun = time.perf_counter()
    recent.keep(
        record(
            metrics,
            usage=Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=4),
            started=begun,
            first_token=begun + 0.5,
            last_token=begun + 0.9,
            queue_s=0.1,
        )
    )
    clock.now += 2
    recent.keep(record(metrics, status=400, error="context_length_exceeded"))
    requests = recent.requests()
    figures = recent.figures(requests)
    assert (figures.window_s, figures.num_requests, figures.num_errors) == (recent_module.WINDOW_S, 2, 1)
    assert (figures.prompt_tokens, figures.completion_tokens, figures.cached_tokens) == (5, 3, 4)
    assert figures.ttft_s is not None
    assert math.isclose(figures.ttft_s.p99, 0.5)
    assert figures.token_s is not None
    assert math.isclose(figures.token_s.p50, 0.2)
    assert figures.queue_s == Percentiles(0.1, 0.1, 0.1)


def test_what_failed_is_kept_longer_than_the_window(metrics: Metrics) -> None:
    clock = Clock()
    recent = Recent(clock)
    recent.keep(record(metrics, error="engine_error"))  # within a stream: the status was 200
    recent.keep(record(metrics, status=404))
    recent.keep(record(metrics, status=0, aborted=True))
    recent.keep(record(metrics, status=401, metered=False))  # no route for a model
    clock.now += 2 * recent_module.WINDOW_S
    assert [(one.status, one.error) for one in recent.errors()] == [(499, ""), (404, ""), (200, "engine_error")]
    assert recent.requests() == []
    assert recent.uptime_s == 2 * recent_module.WINDOW_S


def test_it_is_bounded(metrics: Metrics) -> None:
    clock = Clock()
    recent = Recent(clock)
    for _ in range(recent_module.MAX_KEPT + 5):
        clock.now += 0.01
        recent.keep(record(metrics, status=500))
    assert len(recent.requests()) == recent_module.MAX_KEPT
    assert len(recent.errors()) == recent_module.MAX_ERRORS
    figures = recent.figures(recent.requests())
    assert math.isclose(figures.window_s, 0.01 * (recent_module.MAX_KEPT - 1))
