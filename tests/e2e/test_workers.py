"""Two gateway workers on one core: no request is lost, and the death of one worker is its own clients' trouble alone.

Who served a connection is read from the kernel: the socket at the server's end belongs to one worker's process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.server import RunningServer, is_alive, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MODEL = "SmolLM2-135M-Instruct"
NUM_REQUESTS, CONCURRENCY = 64, 16
#: More than is generated in the time that the test takes: a request that nobody aborts would still run.
ENDLESS = 6000


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(["--workers", "2"]) as running:
        yield running


@dataclass
class Answer:
    """What a client saw. `terminals` counts finish reasons, `done` whether the end was told, `broken` a lost link."""

    text: str = ""
    terminals: list[str] = field(default_factory=list)
    done: bool = False
    broken: str = ""
    completion_tokens: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class Connection:
    """One TCP connection of its own, kept alive between requests."""

    def __init__(self, server: RunningServer, session: aiohttp.ClientSession, sockets: list[socket.socket]) -> None:
        self._server = server
        self._session = session
        self._sockets = sockets

    @property
    def worker(self) -> int | None:
        """The process at the other end; None if it is no worker's (any more). Known once a request was made."""
        port = self._sockets[-1].getsockname()[1]
        inode = server_inode(int(self._server.url.rpartition(":")[2]), port)
        return next((pid for pid in workers(self._server).values() if owns(pid, inode)), None)

    async def get(self, path: str) -> tuple[int, str]:
        async with self._session.get(f"{self._server.url}{path}") as reply:
            return reply.status, await reply.text()

    async def complete(self, prompt: str, max_tokens: int, *, stream: bool, answer: Answer | None = None) -> Answer:
        answer = answer or Answer()
        body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        try:
            async with self._session.post(f"{self._server.base_url}/completions", json=body) as reply:
                assert reply.status == 200, await reply.text()
                if stream:
                    async for line in reply.content:
                        self._event(line.decode().strip(), answer)
                else:
                    self._take(await reply.json(), answer)
                    answer.done = True
        except (aiohttp.ClientError, ConnectionError) as exc:
            answer.broken = type(exc).__name__
        return answer

    def _event(self, line: str, answer: Answer) -> None:
        if not line:
            return
        assert not answer.done, f"something follows the end: {line}"
        assert line.startswith("data: "), line
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            answer.done = True
        else:
            self._take(json.loads(data), answer)

    def _take(self, reply: dict[str, Any], answer: Answer) -> None:
        assert "error" not in reply, reply
        for choice in reply["choices"]:
            answer.text += choice["text"]
            if choice["finish_reason"] is not None:
                answer.terminals.append(choice["finish_reason"])
        if usage := reply.get("usage"):
            answer.completion_tokens = usage["completion_tokens"]
        answer.begun.set()


@asynccontextmanager
async def connected(server: RunningServer) -> AsyncIterator[Connection]:
    sockets: list[socket.socket] = []

    def make(info: tuple[Any, ...]) -> socket.socket:
        sockets.append(socket.socket(*info[:3]))
        return sockets[-1]

    connector = aiohttp.TCPConnector(limit=1, socket_factory=make)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        yield Connection(server, session, sockets)


def workers(server: RunningServer) -> dict[int, int]:
    """Index → process id of the living workers."""
    found = {}
    for pid in server.children():
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
        except OSError:
            continue
        if "llm_inference.serve.worker" in argv and is_alive(pid):
            found[int(argv[-1])] = pid
    return found


def server_inode(server_port: int, client_port: int) -> str:
    """The socket at the server's end of a local connection."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if [int(columns[i].rpartition(":")[2], 16) for i in (1, 2)] == [server_port, client_port]:
            return columns[9]
    return ""


def owns(pid: int, inode: str) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(descriptor) == f"socket:[{inode}]":
                return True
        except OSError:
            continue  # closed since it was listed
    return False


async def gauges(connection: Connection) -> dict[str, float]:
    _, text = await connection.get("/metrics")
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("llm_inference_")]
    return {name.partition("{")[0]: float(value) for name, value in lines}


async def test_no_request_is_lost(server: RunningServer) -> None:
    """Each on a connection of its own, so that the kernel spreads them; half of them streamed."""
    assert sorted(workers(server)) == [0, 1]
    seats = asyncio.Semaphore(CONCURRENCY)
    served: Counter[int | None] = Counter()

    async def one(number: int) -> None:
        async with seats, connected(server) as connection:
            max_tokens = 4 + number % 9
            answer = await connection.complete(f"Number {number}:", max_tokens, stream=number % 2 == 0)
            assert not answer.broken
            assert answer.done
            assert answer.terminals == ["length"]
            assert answer.completion_tokens == max_tokens
            assert answer.text
            served[connection.worker] += 1

    await asyncio.gather(*(one(number) for number in range(NUM_REQUESTS)))
    print(f"\nserved by each worker: {dict(served)}")
    assert served.keys() == set(workers(server).values())
    assert served.total() == NUM_REQUESTS


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_worker_takes_only_its_own_clients_with_it(server: RunningServer, victim: int) -> None:
    before = workers(server)
    doomed_pid, other_pid = before[victim], before[1 - victim]
    async with AsyncExitStack() as stack:
        connections: dict[int | None, list[Connection]] = {doomed_pid: [], other_pid: []}
        for _ in range(64):
            connection = await stack.enter_async_context(connected(server))
            await connection.get("/health")
            connections[connection.worker].append(connection)
            if min(map(len, connections.values())) >= 4:
                break
        doomed, safe = [Answer() for _ in range(4)], [Answer() for _ in range(3)]
        witness = connections[other_pid][3]
        streams = [
            asyncio.create_task(connection.complete(f"Forever {i}:", ENDLESS, stream=True, answer=answer))
            for i, (connection, answer) in enumerate(zip(connections[doomed_pid], doomed, strict=False))
        ]
        streams += [
            asyncio.create_task(connection.complete(f"A while {i}:", 120, stream=True, answer=answer))
            for i, (connection, answer) in enumerate(zip(connections[other_pid], safe, strict=False))
        ]
        await asyncio.wait_for(asyncio.gather(*(answer.begun.wait() for answer in doomed + safe)), 120)
        steps_before = (await gauges(witness))["llm_inference_engine_steps_total"]
        os.kill(doomed_pid, signal.SIGKILL)
        while Path(f"/proc/{doomed_pid}").exists():  # its last thread closes its sockets
            await asyncio.sleep(0.01)
        coming_back = asyncio.create_task(seconds_until_served_by_a_new_worker(server, victim, doomed_pid))

        # At once: whoever comes now is served, by the other one.
        async with connected(server) as connection:
            late = await connection.complete("The capital of France is", 8, stream=False)
            assert "Paris" in late.text
            assert connection.worker == other_pid

        for answer in await asyncio.wait_for(asyncio.gather(*streams[:4]), 10):
            assert answer.broken
            assert not answer.terminals
            assert not answer.done
        for answer in await asyncio.wait_for(asyncio.gather(*streams[4:]), 200):
            assert not answer.broken
            assert answer.terminals == ["length"]
            assert answer.done
            assert answer.completion_tokens == 120

        # Its successor listens on the same address and answers.
        print(f"\nback {await asyncio.wait_for(coming_back, 30):.1f} s after the kill")
        assert workers(server)[1 - victim] == other_pid

        # The core has dropped what nobody would read, long before its end.
        deadline = time.monotonic() + 60
        while (now := await gauges(witness))["llm_inference_kv_cache_usage_ratio"] > 0:
            assert time.monotonic() < deadline, now
            await asyncio.sleep(0.1)
        assert now["llm_inference_num_requests_running"] == 0
        assert now["llm_inference_num_requests_waiting"] == 0
        assert now["llm_inference_kv_cache_free_blocks"] == now["llm_inference_kv_cache_blocks"]
        assert now["llm_inference_engine_steps_total"] - steps_before < ENDLESS // 2


async def seconds_until_served_by_a_new_worker(server: RunningServer, index: int, old_pid: int) -> float:
    """Until a fresh connection reaches worker `index` again, another process than before, and it generates."""
    begun = time.monotonic()
    while True:
        async with connected(server) as connection:
            status, _ = await connection.get("/ready")
            pid = workers(server).get(index)
            if status == 200 and pid is not None and pid != old_pid and connection.worker == pid:
                answer = await connection.complete("The capital of France is", 8, stream=True)
                assert "Paris" in answer.text
                assert answer.terminals == ["length"]
                return time.monotonic() - begun
        await asyncio.sleep(0.05)
