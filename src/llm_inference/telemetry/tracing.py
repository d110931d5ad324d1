"""OpenTelemetry spans, for whoever switched them on: imported only then, so that off costs nothing.

The parts of a request are known when it ends, so its inner spans are made then, with their own times; the outer one is
begun at the start, since engines behind us are told its identity (W3C trace context). Sent by OTLP over HTTP, as the
standard OTEL_* variables say. Knows no HTTP framework and no request: it is given names, times and attributes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_inference.telemetry.otel import CLOSE_S, aside, make_resource, require
from llm_inference.version import __version__

#: What crosses processes; everything else in a request's head is nobody's business here.
_CONTEXT_HEADERS = (b"traceparent", b"tracestate")


@dataclass(frozen=True, slots=True)
class Part:
    """A span inside a request: seconds since the request's beginning."""

    name: str
    begin_s: float
    end_s: float


class Trace:
    """The outer span of one request. Never ended, it is never sent."""

    def __init__(self, tracer: Any, api: _Api, parent: Any) -> None:
        self._tracer = tracer
        self._api = api
        self._begun_ns = time.time_ns()
        self._span = tracer.start_span(
            "request", context=parent, kind=api.trace.SpanKind.SERVER, start_time=self._begun_ns
        )

    def headers(self) -> dict[str, str]:
        """What an engine behind us is told."""
        carrier: dict[str, str] = {}
        self._api.propagator.inject(carrier, self._api.trace.set_span_in_context(self._span))
        return carrier

    def end(
        self, name: str, attributes: Mapping[str, Any], parts: Iterable[Part], duration_s: float, error: str | None
    ) -> None:
        """Write the span with what is inside it. `error`: of ours; a client's mistake is none (as OTel has it)."""
        span, trace = self._span, self._api.trace
        if span.is_recording():
            span.update_name(name)
            span.set_attributes({key: value for key, value in attributes.items() if value is not None})
            if error is not None:
                span.set_status(trace.StatusCode.ERROR, error)
            inside = trace.set_span_in_context(span)
            for part in parts:
                child = self._tracer.start_span(part.name, context=inside, start_time=self._at(part.begin_s))
                child.end(self._at(max(part.end_s, part.begin_s)))
        span.end(self._at(duration_s))

    def _at(self, seconds: float) -> int:
        return self._begun_ns + int(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class _Api:
    """The modules of opentelemetry that spans need."""

    trace: Any
    propagator: Any


def check_installed() -> None:
    """Raises `ConfigError` where a package is missing: before a model is loaded."""
    require("telemetry.traces", "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Tracing:
    """Of one process. Raises `ConfigError` where the packages are not installed."""

    def __init__(self) -> None:
        check_installed()
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=make_resource())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._api = _Api(trace, TraceContextTextMapPropagator())
        self._tracer = self._provider.get_tracer("llm_inference", __version__)

    def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> Trace:
        """The span of a request that begins now; below the caller's, where its head names one."""
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in _CONTEXT_HEADERS}
        return Trace(self._tracer, self._api, self._api.propagator.extract(carrier) if carrier else None)

    async def close(self) -> None:
        """Send what has not been sent, as far as that takes no longer than a few seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(aside(self._provider.shutdown), CLOSE_S)
