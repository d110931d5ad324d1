"""How long running streams stall when long prompts arrive: eight streams decode while 4k-token prompts come in.

    python benchmarks/long_prompts.py [--num-prompts 6]

Prints the gaps between two pieces of the streams (one token each), before and while the prompts are computed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp
import numpy as np
from tests.e2e.server import running_server

NUM_STREAMS = 8
STREAM_TOKENS = 700
PROMPT_TOKENS = 4096


async def stream(session: aiohttp.ClientSession, url: str, number: int, times: list[float]) -> None:
    """One stream; notes when each of its pieces came."""
    body = {
        "prompt": f"Stream {number}:", "max_tokens": STREAM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True
    }  # fmt: skip
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        async for line in reply.content:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())


async def long_prompt(session: aiohttp.ClientSession, url: str, number: int) -> float:
    """Time to the first token of one long prompt that no other shares a beginning with."""
    begun = time.perf_counter()
    body = {"prompt": [1000 + number] * PROMPT_TOKENS, "max_tokens": 1, "temperature": 0}
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        await reply.read()
    return time.perf_counter() - begun


async def measure(url: str, num_prompts: int) -> dict[str, float]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        times: list[list[float]] = [[] for _ in range(NUM_STREAMS)]
        streams = [asyncio.create_task(stream(session, url, i, times[i])) for i in range(NUM_STREAMS)]
        await asyncio.sleep(5)
        arrival = time.perf_counter()
        first_tokens = [await long_prompt(session, url, number) for number in range(num_prompts)]
        done = time.perf_counter()
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    before = np.concatenate([np.diff([t for t in one if t < arrival]) for one in times])
    during = np.concatenate([np.diff([t for t in one if arrival <= t <= done]) for one in times])
    assert len(during), "the streams ended before the prompts came: raise STREAM_TOKENS"
    return {
        "itl_p50_before_ms": round(float(np.percentile(before, 50)) * 1e3, 1),
        "itl_p50_during_ms": round(float(np.percentile(during, 50)) * 1e3, 1),
        "itl_p99_during_ms": round(float(np.percentile(during, 99)) * 1e3, 1),
        "itl_max_during_ms": round(float(during.max()) * 1e3, 1),
        "long_prompt_ttft_s": round(float(np.median(first_tokens)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-prompts", type=int, default=3)
    arguments = parser.parse_args()
    with running_server() as server:
        print(json.dumps(asyncio.run(measure(server.url, arguments.num_prompts))))


if __name__ == "__main__":
    main()
