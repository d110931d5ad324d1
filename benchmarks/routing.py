"""Least outstanding tokens beside round robin: how long requests of mixed lengths take on several replicas.

    python -m benchmarks.routing [--replicas 4] [--seats 4] [--requests 600] [--load 0.8] [--rounds 2] [--json FILE]

Each replica answers so many requests at once, a token every millisecond; what comes then waits in its queue, as in an
engine. Of the requests one in eight is long. They arrive at random times (the same for each policy) at `load` of what
all replicas together can do, through the gateway's own routing; no HTTP, which would add the same to both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from llm_inference.engine.base import Health
from llm_inference.engine.fake import FakeEngine
from llm_inference.engine.types import Delta, GenerateRequest, SamplingParams
from llm_inference.gateway.routing.deployment import Deployment, Group
from llm_inference.gateway.routing.policy import make_policy
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.table import RoutingTable
from llm_inference.gateway.routing.wish import Wish

TOKEN_S = 0.001
SHORT, LONG = 20, 400
SHARE_LONG = 1 / 8


class Seats:
    """An engine that answers `num` requests at once, the others in order."""

    def __init__(self, num: int) -> None:
        fake = FakeEngine("chat", max_batch_size=None)
        self.capabilities, self.info = fake.capabilities, fake.info
        self._seats = asyncio.Semaphore(num)

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...

    async def health(self) -> Health:
        return Health(live=True, ready=True)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        async with self._seats:
            await asyncio.sleep(TOKEN_S)
            yield Delta(token_ids=(1,), text="x")
            num_left = (request.sampling.max_tokens or 1) - 1
            await asyncio.sleep(num_left * TOKEN_S)
            yield Delta(token_ids=(1,) * num_left, text="x" * num_left, finish_reason="length")


async def measure(policy: str, options: argparse.Namespace, seed: int) -> list[float]:
    """Seconds that each request took."""
    rng = random.Random(seed)
    replicas = tuple(Replica(f"r{number}", Seats(options.seats)) for number in range(options.replicas))
    router = Router(RoutingTable([Group("chat", [Deployment(replicas)], policy=make_policy(policy))]))
    mean_s = TOKEN_S * (SHORT + SHARE_LONG * (LONG - SHORT))
    per_second = options.load * options.replicas * options.seats / mean_s
    taken: list[float] = []

    async def one(number: int, num_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=num_tokens)
        request = GenerateRequest(request_id=str(number), model="chat", prompt="x" * 40, sampling=sampling)
        begun = time.perf_counter()
        async with aclosing(router.route(router.find("chat"), Wish()).generate(request)) as deltas:
            async for _ in deltas:
                pass
        taken.append(time.perf_counter() - begun)

    due = time.perf_counter()
    running = []
    for number in range(options.requests):
        due += rng.expovariate(per_second)
        num_tokens = LONG if rng.random() < SHARE_LONG else SHORT
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        running.append(asyncio.create_task(one(number, num_tokens)))
    await asyncio.gather(*running)
    return taken


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seats", type=int, default=4, help="requests that a replica answers at once")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--load", type=float, default=0.8, help="of what all replicas together can do")
    parser.add_argument("--rounds", type=int, default=2, help="the policies by turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    taken: dict[str, list[float]] = {"round_robin": [], "least_tokens": []}
    for seed in range(options.rounds):
        for policy, values in taken.items():
            values += asyncio.run(measure(policy, options, seed))
    figures = {
        policy: {name: round(1000 * percentile(values, share), 1) for name, share in (("p50", 0.5), ("p99", 0.99))}
        for policy, values in taken.items()
    }
    print(f"{'policy':<14}{'p50 ms':>10}{'p99 ms':>10}")
    for policy, row in figures.items():
        print(f"{policy:<14}{row['p50']:>10}{row['p99']:>10}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
