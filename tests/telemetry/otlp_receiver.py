"""A real OTLP/HTTP endpoint for metrics, which keeps what it decodes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class MetricsReceiver:
    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.heads: list[dict[str, str]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.heads.append(
                    {"path": self.path, **{key.lower(): value for key, value in self.headers.items()}}
                )
                receiver.requests.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def metrics(self) -> dict[str, Any]:
        """Of the newest request, by name; each name once."""
        [resource] = self.requests[-1].resource_metrics
        found = [metric for scope in resource.scope_metrics for metric in scope.metrics]
        assert len({metric.name for metric in found}) == len(found)
        return {metric.name: metric for metric in found}

    def points(self, name: str) -> list[tuple[dict[str, str], Any]]:
        """Attributes and point, of one metric."""
        metric = self.metrics()[name]
        data = getattr(metric, metric.WhichOneof("data"))
        return [({pair.key: pair.value.string_value for pair in point.attributes}, point) for point in data.data_points]

    def resource(self) -> dict[str, str]:
        [one] = self.requests[-1].resource_metrics
        return {pair.key: pair.value.string_value for pair in one.resource.attributes}


@contextmanager
def receiving() -> Iterator[MetricsReceiver]:
    one = MetricsReceiver()
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    try:
        yield one
    finally:
        one.server.shutdown()
        thread.join()
        one.server.server_close()
