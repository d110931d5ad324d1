"""The files of `llm-inference deploy monitoring`, and every panel's query on a real Prometheus."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from llm_inference.deploy.dashboards import DASHBOARDS, dashboards
from llm_inference.deploy.render import render
from llm_inference.telemetry.metrics import exposition
from llm_inference.telemetry.metrics.snapshot import Bars, Snapshot
from llm_inference.telemetry.metrics.table import BY_NAME, METRICS
from tests.deploy.cases import cpu
from tests.deploy.prometheus import running_prometheus
from tests.deploy.tools import run, tool
from tests.e2e.server import running_server

#: Panels of the real server that stay empty: what it does not have, or what did not happen to it.
NOT_THERE = {
    "GPU use",
    "GPU memory in use",
    "GPU power",
    "GPU temperature",
    "GPU clocks",
    "Agreement with the best tier",
    "Drafted tokens that stood",
    "Requests by tier",
    "Requests by replica",
    "Waiting at the gateway",
    "Requests in the ledger",
    "Refused for who sent them",
    "Turned away for want of room",
    "Clients that left",
}


def queries() -> dict[str, list[str]]:
    """By the panel's title, as Grafana sends them."""
    return {
        panel.title: [query.replace("$__rate_interval", "20s").replace("$model", ".*") for query, _ in panel.queries]
        for _, panels in DASHBOARDS.values()
        for panel in panels
    }


def test_dashboards_are_json_that_names_what_exists() -> None:
    for name, text in dashboards().items():
        board = json.loads(text)
        assert board["uid"] == f"llm-inference-{name}"
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(panel["title"] and panel["description"].endswith(".") for panel in board["panels"])
    named = {name for found in queries().values() for one in found for name in re.findall(r"llm_inference_(\w+)", one)}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in named} <= BY_NAME.keys() | {
        name.removesuffix("_sum") for name in BY_NAME
    }
    assert sum(len(panels) for _, panels in DASHBOARDS.values()) == len(queries())  # no title twice


def test_the_rules_go_with_the_configuration() -> None:
    files = render("monitoring", cpu())
    assert set(files) == {
        "monitoring/prometheus.yaml",
        "monitoring/rules.yaml",
        *(f"monitoring/grafana/dashboards/{name}.json" for name in DASHBOARDS),
    }
    config = yaml.safe_load(files["monitoring/prometheus.yaml"])
    assert config["scrape_configs"][0]["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]


def test_promtool_accepts_the_metrics() -> None:
    run(tool("promtool"), "check", "metrics", stdin=exposition.text(everything(1), vllm=False).decode())


def test_every_panel_shows_a_synthetic_exporter(tmp_path: Path) -> None:
    """All metrics of the table at once, also those of GPUs, restarts and recorded answers that no test machine has."""
    with exporter() as address, running_prometheus(tmp_path, address) as prometheus:
        prometheus.wait_for("count_over_time(llm_inference_build_info[1m])", 6)
        empty = {title for title, found in queries().items() if not all(map(prometheus.query, found))}
    assert empty == set()


@pytest.mark.e2e
def test_every_panel_shows_our_server_under_load(tmp_path: Path) -> None:
    with (
        running_server(["--max-num-seqs", "4"]) as server,
        ThreadPoolExecutor(4) as threads,
        running_prometheus(tmp_path, server.url.removeprefix("http://")) as prometheus,
    ):
        stop = threading.Event()

        def load(number: int) -> None:
            head = {"content-type": "application/json"}
            prompt = "The same beginning. " * 40 + f"Number {number}:"  # so that there are cached tokens
            body = json.dumps({"prompt": prompt, "max_tokens": 8}).encode()
            while not stop.is_set():
                request = urllib.request.Request(f"{server.base_url}/completions", body, head)
                urllib.request.urlopen(request, timeout=60).read()

        running = [threads.submit(load, number) for number in range(4)]
        try:
            prometheus.wait_for("count_over_time(llm_inference_build_info[1m])", 12)
            empty = {title for title, found in queries().items() if not all(map(prometheus.query, found))}
        finally:
            stop.set()
        for one in running:
            one.result()
    # Absent without a quota or a limit of the cgroup, which differs from machine to machine.
    assert empty - {"CPUs of the cgroup", "Memory of the cgroup"} <= NOT_THERE


def everything(step: int) -> Snapshot:
    """A sample of each metric; counters grow with `step`."""
    snapshot = Snapshot()
    for metric in METRICS:
        labels = tuple("200" if label == "status" else "x" for label in metric.labels)
        if metric.kind == "histogram":
            snapshot.histograms[metric.name] = [(labels, Bars([step] * (len(metric.buckets) + 1), float(step)))]
        elif metric.kind == "counter":
            snapshot.counters[metric.name] = [(labels, float(10 * step))]
        else:
            snapshot.gauges[metric.name] = [(labels, 0.5)]
    return snapshot


@contextmanager
def exporter() -> Iterator[str]:
    """`host:port` of something that shows every metric there is."""
    begun = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exposition.text(everything(1 + int(10 * (time.monotonic() - begun))), vllm=True)
            self.send_response(200)
            self.send_header("content-type", exposition.CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
