"""One trace through two services: a gateway without a model, and behind it the native engine in its own process."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import running_server
from tests.telemetry.test_tracing import SPAN_ID, TRACE_ID, Receiver, attributes, receiver

__all__ = ["receiver"]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PHASES = ("admission", "route", "queue", "prefill", "decode")


def spans(receiver: Receiver, service: str) -> dict[str, Any]:
    """By name, of those that came from `service`."""
    found = {}
    for request in receiver.requests:
        for resource in request.resource_spans:
            named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            if named["service.name"] == service:
                found |= {span.name: span for scope in resource.scope_spans for span in scope.spans}
    return found


@pytest.fixture
def front(receiver: Receiver, tmp_path: Path) -> Iterator[str]:
    """The API of a gateway before another one, which has the default model."""
    common = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    model = "SmolLM2-135M-Instruct"
    file = tmp_path / "front.json"
    native = tmp_path / "native.json"
    native.write_text(json.dumps({"telemetry": {"traces": True}}))
    with running_server(["--config", str(native)], env={**common, "OTEL_SERVICE_NAME": "behind"}) as behind:
        entry = {"name": "small", "model": model, "engine": "openai", "url": behind.base_url, "warmup": []}
        file.write_text(json.dumps({"telemetry": {"traces": True}, "models": [entry]}))
        with running_server(["--config", str(file)], env={**common, "OTEL_SERVICE_NAME": "front"}) as running:
            yield running.base_url


def test_from_the_caller_to_the_engines_phases(front: str, receiver: Receiver) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 12}
    headers = {"content-type": "application/json", "traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
    request = urllib.request.Request(f"{front}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if "chat small" in spans(receiver, "front") and "decode" in spans(receiver, "behind"):
            break
        time.sleep(0.05)
    ours, theirs = spans(receiver, "front"), spans(receiver, "behind")
    outer, inner = ours["chat small"], theirs["chat SmolLM2-135M-Instruct"]
    assert outer.trace_id.hex() == inner.trace_id.hex() == TRACE_ID
    assert outer.parent_span_id.hex() == SPAN_ID
    assert inner.parent_span_id == outer.span_id
    assert attributes(inner)["gen_ai.usage.output_tokens"] == attributes(outer)["gen_ai.usage.output_tokens"]
    assert set(PHASES) <= theirs.keys()
    ends = [(theirs[name].start_time_unix_nano, theirs[name].end_time_unix_nano) for name in PHASES]
    assert ends == sorted(ends), "one after the other"
    for name in PHASES:
        assert theirs[name].parent_span_id == inner.span_id
        assert theirs[name].trace_id.hex() == TRACE_ID
    assert theirs["prefill"].end_time_unix_nano > theirs["prefill"].start_time_unix_nano
