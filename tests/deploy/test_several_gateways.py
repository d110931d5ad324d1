"""Two gateways before two engines, behind the real nginx: rolled over and killed under load, nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from llm_inference.deploy.choices import Choices
from llm_inference.deploy.nginx import render_nginx
from tests.deploy.cases import cpu
from tests.deploy.test_nginx import configuration
from tests.deploy.test_start import free_port
from tests.deploy.tools import tool
from tests.gateway.tenants.services import redis_server

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio]
KEY = "the-key"
TEXT = "one two three four five six"


@dataclass
class Member:
    """One `llm-inference serve` of the four."""

    port: int
    config: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        program = str(Path(sys.executable).parent / "llm-inference")
        log = self.config.with_suffix(".log").open("ab")
        self.process = subprocess.Popen([program, "serve", "--config", str(self.config)], stderr=log)
        log.close()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while not _is_ready(self.port):
            assert time.monotonic() < deadline, self.config.with_suffix(".log").read_text()
            time.sleep(0.05)

    def restart(self) -> None:
        """As a rolling update does: told to go, waited for, started again."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        self.start()
        self.wait_ready()


@dataclass(frozen=True)
class House:
    gateways: tuple[Member, Member]
    engines: tuple[Member, Member]
    url: str


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with redis_server() as redis:
        yield from _house(tmp_path, redis.url)


def _house(tmp_path: Path, redis_url: str) -> Iterator[House]:
    engines = tuple(
        _member(
            tmp_path / f"engine{number}.yaml",
            {},
            {"model": "echo", "engine": "fake", "engine_args": {"delay_s": 0.02}, "max_num_seqs": 64},
        )
        for number in range(2)
    )
    urls = [f"http://127.0.0.1:{engine.port}" for engine in engines]
    gateways = tuple(
        _member(
            tmp_path / f"gateway{number}.yaml",
            {
                "keys": [
                    {"name": "team", "key": KEY, "limits": {"requests_per_minute": 100_000}},
                    {"name": "few", "key": "few-key", "limits": {"requests_per_minute": 6}},
                ],
                "limits_store": redis_url,
                "ledger": f"sqlite:///{tmp_path}/ledger{number}.sqlite",
            },
            {"model": "echo", "engine": "openai", "url": urls, "routing": {"policy": "prefix_affinity"}},
        )
        for number in range(2)
    )
    choices = Choices(hostname="llm.example.org", servers=tuple(f"127.0.0.1:{g.port}" for g in gateways))
    [text] = render_nginx(cpu(choices)).values()
    https = free_port()
    # All load comes from one address here.
    text = text.replace("rate=20r/s", "rate=10000r/s")
    file = configuration(tmp_path, text, http=free_port(), https=https)
    for member in (*engines, *gateways):
        member.start()
    nginx = subprocess.Popen([tool("nginx"), "-c", str(file), "-p", str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        for member in (*engines, *gateways):
            member.wait_ready()
        yield House((gateways[0], gateways[1]), (engines[0], engines[1]), f"https://127.0.0.1:{https}")
    finally:
        nginx.send_signal(signal.SIGTERM)
        nginx.wait(30)
        for member in (*gateways, *engines):
            member.process.send_signal(signal.SIGTERM)
        for member in (*gateways, *engines):
            member.process.wait(30)


def _member(config: Path, api: dict[str, object], model: dict[str, object]) -> Member:
    port = free_port()
    service = {"api": {"port": port, "shutdown_grace_s": 20, **api}, "models": [{"name": "echo", **model}]}
    config.write_text(json.dumps(service))
    return Member(port, config)


@dataclass
class Load:
    """Requests without a pause, streams and whole answers by turns, and how each of them ended."""

    url: str
    ends: Counter[str] = field(default_factory=Counter)
    _stopping: bool = False

    async def run(self, session: aiohttp.ClientSession, lane: int) -> None:
        number = 0
        while not self._stopping:
            number += 1
            self.ends[await self._one(session, f"{lane} {TEXT}", stream=number % 2 == 0)] += 1

    async def _one(self, session: aiohttp.ClientSession, text: str, *, stream: bool) -> str:
        body = {"model": "echo", "prompt": text, "stream": stream, "max_tokens": 100}
        headers = {"authorization": f"Bearer {KEY}"}
        try:
            async with session.post(f"{self.url}/v1/completions", json=body, headers=headers) as reply:
                raw = await reply.read()
        except aiohttp.ClientError as exc:
            return f"broken: {type(exc).__name__}"
        if reply.status != 200:
            return f"status {reply.status}: {raw[:200].decode()}"
        if not stream:
            return "whole" if json.loads(raw)["choices"][0]["text"] == text else "other text"
        events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
        chunks = [json.loads(event) for event in events if event != b"[DONE]"]
        errors = [chunk for chunk in chunks if "error" in chunk]
        if errors:
            return f"error in the stream: {errors[0]['error']['message'][:200]}"
        if events[-1] != b"[DONE]" or events.count(b"[DONE]") != 1:
            return "cut"
        said = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        return "whole" if said == text else "other text"

    @asynccontextmanager
    async def lanes(self, session: aiohttp.ClientSession, count: int) -> AsyncGenerator[None, None]:
        """So many at a time for the block; behind it all have ended."""
        tasks = [asyncio.create_task(self.run(session, lane)) for lane in range(count)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)


@pytest.fixture
async def session() -> AsyncGenerator[aiohttp.ClientSession, None]:
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        yield session


async def test_a_rolling_restart_under_load_loses_nothing(house: House, session: aiohttp.ClientSession) -> None:
    load = Load(house.url)
    async with load.lanes(session, 12):
        await asyncio.sleep(0.5)
        for member in (*house.gateways, *house.engines):
            before = load.ends["whole"]
            await asyncio.to_thread(member.restart)
            assert load.ends["whole"] > before, f"nothing was answered while one of two was away: {load.ends}"
    assert set(load.ends) == {"whole"}, load.ends


async def killed_and_back(member: Member) -> None:
    """Under load: one second with it, two without, then again with it."""
    await asyncio.sleep(1)
    member.process.kill()
    member.process.wait(10)
    await asyncio.sleep(2)
    member.start()
    await asyncio.to_thread(member.wait_ready)
    await asyncio.sleep(0.5)


async def test_a_killed_gateway(house: House, session: aiohttp.ClientSession) -> None:
    """What it had begun to answer breaks off, visibly; all else is answered by the other one."""
    load = Load(house.url)
    async with load.lanes(session, 12):
        await killed_and_back(house.gateways[0])
    broken = sum(count for how, count in load.ends.items() if how.startswith("broken") or how == "cut")
    assert broken <= 12, load.ends  # at most what was under way at that moment
    assert load.ends["whole"] + broken == sum(load.ends.values()), load.ends


async def test_a_killed_engine(house: House, session: aiohttp.ClientSession) -> None:
    """What it had begun to answer ends with one error; all else is answered by the other one."""
    load = Load(house.url)
    async with load.lanes(session, 12):
        await killed_and_back(house.engines[0])
    errors = sum(count for how, count in load.ends.items() if how.startswith(("error in the stream", "status 500")))
    assert errors <= 12, load.ends
    assert load.ends["whole"] + errors == sum(load.ends.values()), load.ends


async def test_both_gateways_count_against_one_limit(house: House, session: aiohttp.ClientSession) -> None:
    seen = []
    for gateway in house.gateways * 4:
        url = f"http://127.0.0.1:{gateway.port}/v1/completions"
        headers = {"authorization": "Bearer few-key"}
        async with session.post(url, json={"model": "echo", "prompt": "a", "max_tokens": 9}, headers=headers) as reply:
            seen.append((reply.status, reply.headers.get("x-ratelimit-remaining-requests")))
    assert seen == [*((200, str(left)) for left in (5, 4, 3, 2, 1, 0)), (429, "0"), (429, "0")]
