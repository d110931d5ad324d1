"""A real Prometheus that scrapes one target every half second, and the values of queries."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.tools import tool


@dataclass
class Prometheus:
    url: str
    log: Path

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples now; NaN is no data. Fails where the query is wrong."""
        data = urllib.parse.urlencode({"query": expression}).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/query", data, timeout=10) as reply:
            samples = json.load(reply)["data"]["result"]
        return [sample for sample in samples if sample["value"][1] != "NaN"]

    def wait_for(self, expression: str, least: float, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if any(float(sample["value"][1]) >= least for sample in self.query(expression)):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"{expression} never came to {least}:\n{self.log.read_text()[-2000:]}")


@contextmanager
def running_prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    program = tool("prometheus")
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
        "scrape_configs": [{"job_name": "test", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(json.dumps(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "prometheus.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Prometheus(f"http://127.0.0.1:{port}", log)
    finally:
        process.terminate()
        process.wait(20)
