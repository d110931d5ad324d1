"""What the gateway adds to a request, an event and a machine, beside other proxies, in one run.

    python -m benchmarks.gateway.measure [--only llm-inference,nginx] [--seconds 4] [--json FILE]

The target has one core, the load and the mock upstream the other. `added` is the time at concurrency 1 minus that of
the mock asked directly. The configuration of our gateway (everything_on.yaml) is printed with the result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import uvloop
from benchmarks.gateway.load import Load, chat_request, closed_loop, percentile
from benchmarks.gateway.targets import CONFIG, LOAD_CPU, PINS, Target, available, mock_upstream

CONCURRENCY = 16
SINGLE_STREAMS, SINGLE_EVERY_MS = 64, 10
COALESCED_EVENTS = 512
SLOW_PER_S = 300


def requests(port: int, key: str, shorter: int = 1) -> dict[str, bytes]:
    """The three kinds. `shorter`: streams of so much fewer events, for what could not finish them in time."""
    host = f"127.0.0.1:{port}"
    return {
        "small": chat_request(host, model="mock", key=key, events=4, stream=False),
        "coalesced": chat_request(host, model="mock", key=key, events=COALESCED_EVENTS // shorter, stream=True),
        "single": chat_request(
            host, model="mock", key=key, events=200 // shorter, every_ms=SINGLE_EVERY_MS, stream=True
        ),
    }


async def latency(port: int, key: str, seconds: float) -> tuple[float, float]:
    """p50 and p99 of small answers at concurrency 1, in ms."""
    load = await closed_loop(port, requests(port, key)["small"], concurrency=1, duration_s=seconds)
    _check(load)
    return percentile(load.total_s, 0.5) * 1000, percentile(load.total_s, 0.99) * 1000


async def figures(target: Target, direct: tuple[float, float], seconds: float) -> dict[str, Any]:
    """All numbers of one target."""
    wanted = requests(target.port, target.key)
    await closed_loop(target.port, wanted["small"], concurrency=CONCURRENCY, duration_s=min(seconds, 1.0))
    p50, p99 = await latency(target.port, target.key, seconds)
    before = target.cpu_s()
    small = await closed_loop(target.port, wanted["small"], concurrency=CONCURRENCY, duration_s=seconds)
    small_cpu = target.cpu_s() - before
    _check(small)
    if small.num_ok / small.duration_s < SLOW_PER_S:
        wanted = requests(target.port, target.key, shorter=10)
    coalesced = await closed_loop(target.port, wanted["coalesced"], concurrency=CONCURRENCY, duration_s=seconds)
    _check(coalesced)
    before = target.cpu_s()
    single = await closed_loop(
        target.port, wanted["single"], concurrency=SINGLE_STREAMS, duration_s=seconds, pause_s=0.003
    )
    single_cpu = target.cpu_s() - before
    _check(single)
    return {
        "requests_per_s": round(small.num_ok / small.duration_s),
        "cpu_us_per_request": round(small_cpu / small.num_ok * 1e6),
        "added_p50_ms": round(p50 - direct[0], 3),
        "added_p99_ms": round(p99 - direct[1], 3),
        "events_per_s_coalesced": round(coalesced.num_events / coalesced.duration_s),
        "cpu_us_per_event_single": round(single_cpu / single.num_events * 1e6, 1),
        "rss_mb": round(target.rss_mb(), 1),
    }


def _check(load: Load) -> None:
    assert set(load.statuses) == {200}, f"answers by status: {load.statuses}, broken off: {load.num_broken}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="Targets, separated by commas; all that are installed.")
    parser.add_argument("--seconds", type=float, default=4.0, help="Of each of the four measurements.")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CPU})
    targets = available()
    names = arguments.only.split(",") if arguments.only else list(targets)
    results: dict[str, Any] = {}
    with mock_upstream() as upstream:
        direct = uvloop.run(latency(upstream, "none", arguments.seconds))
        for name in names:
            start = cast("Callable[[int, Path], AbstractContextManager[Target]]", targets[name])
            with tempfile.TemporaryDirectory() as scratch, start(upstream, Path(scratch)) as target:
                results[name] = uvloop.run(figures(target, direct, arguments.seconds))
            print(name, json.dumps(results[name]), flush=True)
    report = {
        "results": results,
        "direct_ms": {"p50": round(direct[0], 3), "p99": round(direct[1], 3)},
        "seconds": arguments.seconds,
        "pins": {name: PINS[name] for name in names if name in PINS},
        "python": platform.python_version(),
        "config": CONFIG.read_text(),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    else:
        print(CONFIG.read_text())


if __name__ == "__main__":
    main()
