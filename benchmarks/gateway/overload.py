"""Ten times more requests than the gateway has room for, for a minute: what happens to those that are let in.

    python -m benchmarks.gateway.overload [--seconds 60] [--json FILE]

Requests come at a fixed rate whatever the answers (an open loop). A request takes the mock 300 ms to its first byte and
400 ms in all, so 32 places are worth 80 requests a second; 40 a second are the unloaded case, 800 the overload.
Expected: p99 of the time to the first byte of those let in at most twice the unloaded one, refusals within 50 ms,
memory flat, and two seconds after the flood everything as before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop
from benchmarks.gateway.load import Client, Load, chat_request, percentile
from benchmarks.gateway.targets import KEY, LOAD_CPU, mock_upstream, ours

CONFIG = Path(__file__).parent / "overload.yaml"
CAPACITY_PER_S = 80.0
FIRST_MS, EVENTS, EVERY_MS = 300, 10, 10
#: The load keeps its connections, and each is used again within two seconds, before the gateway would close it.
CONNECTIONS_PER_REQUEST_PER_S, MIN_CONNECTIONS = 0.5, 50


class Outcome:
    """What came back, by status: seconds to the first byte."""

    def __init__(self) -> None:
        self.first_byte_s: dict[int, list[float]] = {}
        self.num_broken = 0
        self.num_unsent = 0
        self.num_without_retry_after = 0

    def took(self, status: int, first_byte_s: float, total_s: float, head: bytes) -> None:
        self.first_byte_s.setdefault(status, []).append(first_byte_s)
        if status == 503 and b"retry-after:" not in head:
            self.num_without_retry_after += 1

    def summary(self) -> dict[str, Any]:
        admitted = self.first_byte_s.get(200, [])
        refused = [took for status, all_took in self.first_byte_s.items() if status != 200 for took in all_took]
        return {
            "by_status": {str(status): len(all_took) for status, all_took in sorted(self.first_byte_s.items())},
            "broken": self.num_broken,
            "unsent": self.num_unsent,
            "refusals_without_retry_after": self.num_without_retry_after,
            "admitted_ttft_p50_ms": _ms(percentile(admitted, 0.5)),
            "admitted_ttft_p99_ms": _ms(percentile(admitted, 0.99)),
            "refusal_p99_ms": _ms(percentile(refused, 0.99)),
            "refusal_max_ms": _ms(max(refused, default=float("nan"))),
        }


def _ms(seconds: float) -> float | None:
    return None if seconds != seconds else round(seconds * 1000, 1)


class Waiting(Client):
    """A connection that sends when it is told to, not when its last answer is there."""

    def __init__(self, load: Load, idle: deque[Waiting], outcome: Outcome) -> None:
        super().__init__(load, lambda: None, outcome.took)
        self._idle = idle
        self.request: bytes | None = None

    def _send(self) -> None:
        if self.request is None:  # answered, or just connected
            self._sent = 0.0
            self._idle.append(self)
            return
        request, self.request = self.request, None
        self._head, self._status, self._left, self._tail = b"", 0, None, b""
        self._sent = time.perf_counter()
        self._transport.write(request)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        with suppress(ValueError):
            self._idle.remove(self)

    def ask(self, request: bytes) -> None:
        self.request = request
        self._send()

    def close(self) -> None:
        self._sent = 0.0
        self._transport.close()


async def flood(port: int, per_s: float, duration_s: float) -> Outcome:
    """Requests at an even rate. One that finds no free connection is not sent, and counted; there should be enough."""
    host = f"127.0.0.1:{port}"
    request = chat_request(
        host, model="mock", key=KEY, events=EVENTS, every_ms=EVERY_MS, first_ms=FIRST_MS, stream=True
    )
    loop = asyncio.get_running_loop()
    outcome, load, idle = Outcome(), Load(), deque[Waiting]()
    clients = []
    for _ in range(max(MIN_CONNECTIONS, int(CONNECTIONS_PER_REQUEST_PER_S * per_s))):
        _, client = await loop.create_connection(lambda: Waiting(load, idle, outcome), "127.0.0.1", port)
        clients.append(client)
    begun = time.perf_counter()
    num_sent = 0
    while (now := time.perf_counter() - begun) < duration_s:
        due = int(now * per_s)
        while num_sent < due and idle:
            idle.popleft().ask(request)
            num_sent += 1
        outcome.num_unsent += due - num_sent
        num_sent = due
        await asyncio.sleep(0.002)
    await asyncio.sleep(1.5)  # the last answers
    for client in clients:
        client.close()
    outcome.num_broken = load.num_broken
    await asyncio.sleep(0.1)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {LOAD_CPU})
    with (
        mock_upstream() as upstream,
        tempfile.TemporaryDirectory() as scratch,
        ours(upstream, Path(scratch), CONFIG) as target,
    ):
        unloaded = uvloop.run(flood(target.port, CAPACITY_PER_S / 2, 10.0)).summary()
        uvloop.run(flood(target.port, CAPACITY_PER_S * 10, 5.0))  # caches, arenas and connections are filled
        before_mb = target.rss_mb()
        overloaded = uvloop.run(flood(target.port, CAPACITY_PER_S * 10, arguments.seconds)).summary()
        after_mb = target.rss_mb()
        time.sleep(0.4)  # with the 1.6 s after the flood: two seconds
        recovered = uvloop.run(flood(target.port, CAPACITY_PER_S / 2, 5.0)).summary()
    report = {
        "unloaded": unloaded,
        "overloaded": overloaded,
        "recovered": recovered,
        "rss_mb": {"before": round(before_mb, 1), "after": round(after_mb, 1)},
        "ttft_p99_ratio": round(overloaded["admitted_ttft_p99_ms"] / unloaded["admitted_ttft_p99_ms"], 2),
        "seconds": arguments.seconds,
        "config": CONFIG.read_text(),
    }
    print(json.dumps({name: value for name, value in report.items() if name != "config"}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
