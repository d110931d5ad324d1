"""Spans as a real OTLP receiver gets them, from a gateway with the fake engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.telemetry.tracing import Part, Tracing, check_installed

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Receiver:
    """An OTLP/HTTP endpoint that keeps what it decodes."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                receiver.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def spans(self) -> dict[str, Any]:
        """By name; each name once."""
        found = [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert len({span.name for span in found}) == len(found), [span.name for span in found]
        return {span.name: span for span in found}

    def resource(self) -> dict[str, str]:
        [one] = [resource for request in self.requests for resource in request.resource_spans]
        return {pair.key: pair.value.string_value for pair in one.resource.attributes}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    pytest.importorskip("opentelemetry.sdk")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    one = Receiver()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", one.url)
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


async def test_a_chat_is_a_tree_of_spans(receiver: Receiver) -> None:
    from tests.gateway.serving import MESSAGES, serving

    tracing = Tracing()
    async with serving(tracing=tracing) as service:
        head = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "tracestate": "vendor=1"}
        body = {"model": "fake", "messages": MESSAGES, "max_tokens": 5}
        reply = await service.post("/v1/chat/completions", body, headers=head)
        assert reply.status == 200
        await service.get("/health")
    await tracing.close()
    spans = receiver.spans()
    root = spans.pop("chat fake")
    assert root.trace_id.hex() == TRACE_ID
    assert root.parent_span_id.hex() == SPAN_ID
    assert root.kind == 2  # SERVER
    said = attributes(root)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.model"] == "fake"
    assert said["gen_ai.usage.output_tokens"] == 5
    assert said["gen_ai.usage.input_tokens"] > 0
    assert len(said["gen_ai.response.finish_reasons"]) == 1
    assert said["http.response.status_code"] == 200
    assert "error.type" not in said
    assert {"admission", "prefill", "decode"} <= spans.keys()
    for span in spans.values():
        assert span.trace_id == root.trace_id
        assert span.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    assert receiver.resource()["service.name"] == "llm-inference"


async def test_an_engine_is_told_the_context_and_failures_are_errors(receiver: Receiver) -> None:
    tracing = Tracing()
    trace = tracing.begin([(b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-01".encode()), (b"cookie", b"x")])
    told = trace.headers()
    assert told["traceparent"].startswith(f"00-{TRACE_ID}-")
    trace.end("chat m", {"a": None, "b": 1}, [Part("decode", 0.5, 0.2)], 1.0, "engine_error")
    await tracing.close()
    spans = receiver.spans()
    root = spans["chat m"]
    assert told["traceparent"] == f"00-{TRACE_ID}-{root.span_id.hex()}-01"
    assert root.end_time_unix_nano - root.start_time_unix_nano == 1_000_000_000
    assert root.status.code == 2
    assert root.status.message == "engine_error"
    assert attributes(root) == {"b": 1}
    assert spans["decode"].end_time_unix_nano == spans["decode"].start_time_unix_nano


async def test_a_caller_that_does_not_sample_is_heard(receiver: Receiver) -> None:
    tracing = Tracing()
    trace = tracing.begin([(b"traceparent", f"00-{TRACE_ID}-{SPAN_ID}-00".encode())])
    assert trace.headers()["traceparent"].endswith("-00")
    trace.end("chat m", {}, [], 1.0, None)
    await tracing.close()
    assert receiver.requests == []


async def test_a_context_that_is_none_begins_a_trace(receiver: Receiver) -> None:
    tracing = Tracing()
    for value in (b"garbage", b"\xff\xfe", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"):
        headers = tracing.begin([(b"traceparent", value)]).headers()
        assert headers["traceparent"][3:35] != "0" * 32
    await tracing.close()


def test_without_the_packages_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"install llm-inference\[otel\]"):
        check_installed()


def test_off_it_is_not_even_imported() -> None:
    """The API alone may be there: the web framework looks for it."""
    code = (
        "import sys, llm_inference.serve.parent, llm_inference.serve.http, llm_inference.native.engine;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


async def test_a_receiver_that_says_nothing_does_not_keep_the_end_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    monkeypatch.setattr("llm_inference.telemetry.tracing.CLOSE_S", 0.05)
    tracing = Tracing()
    shutdown, answered, over = tracing._provider.shutdown, threading.Event(), threading.Event()

    def wait() -> None:
        answered.wait(60)
        shutdown()
        over.set()

    monkeypatch.setattr(tracing._provider, "shutdown", wait)
    await tracing.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not over.is_set()
    answered.set()
    assert over.wait(60)
