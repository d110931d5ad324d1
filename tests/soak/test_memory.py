"""Case O7: thousands of unique requests, streamed, whole and abandoned, leave nothing behind in either process.

The criterion, for the gateway and the core each: anonymous memory (RssAnon) after every tenth of the requests, the
server being idle. The KV cache is small, so that all of its pages are touched early. The first three tenths are
warm-up: allocators and caches fill. From there on the last value may exceed the first by at most 3 % or 8 MiB,
whichever is more; a leak of 4 KB a request would show as 8.4 MiB.
Free blocks, running and waiting requests and the requests in flight are back to the start every time.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.server import RunningServer, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_REQUESTS = 3000
NUM_TENTHS = 10
NUM_WARM_UP_TENTHS = 3
CONCURRENCY = 16
MAX_GROWTH = 0.03
MAX_GROWTH_BYTES = 8 * 2**20

_WORDS = (
    "river", "stone", "paper", "cloud", "engine", "garden", "window", "number", "letter", "music", "bridge", "winter",
    "silver", "market", "planet",
)  # fmt: skip


def rss_anon(pid: int) -> int:
    """Bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024  # type: ignore[index]


def core_of(server: RunningServer) -> int:
    [core] = [pid for pid in server.children() if "native.server" in Path(f"/proc/{pid}/cmdline").read_text()]
    return core


async def gauges(session: aiohttp.ClientSession, server: RunningServer) -> dict[str, float]:
    """What must be as at the start whenever the server is idle."""
    async with session.get(f"{server.url}/metrics") as reply:
        text = await reply.text()
    found = dict(re.findall(r"^(llm_inference_[a-z_]+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE))
    names = [name for name in found if re.search(r"in_flight|running|waiting|kv_cache_usage", name)]
    assert len(names) >= 4, sorted(found)
    return {name: float(found[name]) for name in names}


async def one(session: aiohttp.ClientSession, server: RunningServer, number: int) -> None:
    """Request `number`: streamed, streamed and abandoned, or whole. No two are alike."""
    rng = random.Random(number)
    words = [rng.choice(_WORDS) for _ in range(rng.randint(1, 40))]
    body = {
        "prompt": f"{number}: " + " ".join(words),
        "max_tokens": rng.randint(1, 12),
        "stream": number % 3 != 0,
        "temperature": rng.choice([0, 0.8]),
        "logprobs": rng.choice([None, 2]),
        "ignore_eos": True,
        "repetition_penalty": rng.choice([None, 1.1]),
    }
    if number % 20 == 0:
        body |= {"ignore_eos": False, "guided_regex": f"[a-z]{{1,5}}{number}"}
    if number % 3 == 2:
        body["max_tokens"] = 200
    async with session.post(f"{server.base_url}/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()
        if number % 3 == 0:
            assert (await reply.json())["choices"][0]["finish_reason"] in ("length", "stop")
            return
        num_events = 0
        async for line in reply.content:
            num_events += line.startswith(b"data: ")
            if number % 3 == 2 and num_events > number % 7:
                reply.close()  # in the middle, at the first token, or before it
                return
            if line.startswith(b"data: {"):
                assert "error" not in json.loads(line[6:])
        assert num_events > 1


async def idle(session: aiohttp.ClientSession, server: RunningServer, at_start: dict[str, float]) -> None:
    deadline = time.monotonic() + 30
    while (now := await gauges(session, server)) != at_start:
        assert time.monotonic() < deadline, f"not idle again: {now}, at the start {at_start}"
        await asyncio.sleep(0.25)


async def test_nothing_is_left_behind(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text("max_model_len: 1024\nkv_cache_memory: 128MiB\n")
    with running_server(["--config", str(config), "--log-level", "info"]) as server:
        pids = {"gateway": server.process.pid, "core": core_of(server)}
        readings: dict[str, list[int]] = {name: [] for name in pids}
        connector = aiohttp.TCPConnector(limit=CONCURRENCY)
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            at_start = await gauges(session, server)
            numbers = iter(range(NUM_REQUESTS))

            async def work(last: int) -> None:
                for number in numbers:
                    await one(session, server, number)
                    if number >= last:
                        return

            for tenth in range(1, NUM_TENTHS + 1):
                last = NUM_REQUESTS * tenth // NUM_TENTHS - CONCURRENCY
                await asyncio.gather(*(work(last) for _ in range(CONCURRENCY)))
                await idle(session, server, at_start)
                for name, pid in pids.items():
                    readings[name].append(rss_anon(pid))
        assert "Traceback" not in server.log
    print({name: [round(value / 2**20, 1) for value in values] for name, values in readings.items()}, "MiB RssAnon")
    for name, values in readings.items():
        first, last_value = values[NUM_WARM_UP_TENTHS - 1], values[-1]
        allowed = max(MAX_GROWTH * first, MAX_GROWTH_BYTES)
        assert last_value - first <= allowed, f"the {name} grew: {[value // 2**20 for value in values]} MiB"
