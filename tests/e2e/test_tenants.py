"""Keys, limits and ledger of the real command, with the fake engine: several workers, SIGKILL, a key's life."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.server import RunningServer, command, running_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

#: What may be missing after SIGKILL, in seconds before it.
MAX_LOST_S = 1.0


def write_config(tmp_path: Path, **api: Any) -> list[str]:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"name": "fake", "engine": "fake", "api": {"state_dir": str(tmp_path), **api}}))
    return ["--config", str(file)]


def rows(tmp_path: Path) -> dict[str, tuple[int, int, int]]:
    """(status, prompt tokens, completion tokens) by request id."""
    connection = sqlite3.connect(tmp_path / "ledger.db")
    try:
        found = connection.execute("SELECT request_id, status, prompt_tokens, completion_tokens FROM ledger").fetchall()
    finally:
        connection.close()
    assert len({row[0] for row in found}) == len(found), "each request once"
    return {request_id: (status, prompt, completion) for request_id, status, prompt, completion in found}


@dataclass
class Seen:
    status: int
    prompt_tokens: int
    completion_tokens: int
    ended: float


async def complete(server: RunningServer, *, key: str = "", stream: bool = False, length: int = 20) -> tuple[str, Seen]:
    """One request on a connection of its own, so that the kernel chooses a worker for it."""
    body: dict[str, Any] = {"prompt": "x" * length, "max_tokens": length, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"{server.base_url}/completions"
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as reply:
        text = await reply.text()
        usage: dict[str, int] = {}
        if reply.status == 200:
            last = text.split("\n\n")[-3].removeprefix("data: ") if stream else text
            usage = json.loads(last)["usage"]
        counts = (usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0))
        return reply.headers["x-request-id"], Seen(reply.status, *counts, time.monotonic())


async def test_after_sigkill_at_most_the_last_second_is_missing(tmp_path: Path) -> None:
    with running_server(write_config(tmp_path, ledger="sqlite")) as server:
        seen: dict[str, Seen] = {}

        async def load() -> None:
            while True:
                request_id, one = await complete(server, stream=len(seen) % 2 == 0)
                seen[request_id] = one

        clients = [asyncio.create_task(load()) for _ in range(4)]
        await asyncio.sleep(3)
        killed = time.monotonic()
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        await asyncio.gather(*clients, return_exceptions=True)
    written = rows(tmp_path)
    due = {request_id for request_id, one in seen.items() if one.ended < killed - MAX_LOST_S}
    assert len(due) > 50
    assert due <= set(written), "older than a second and not there"
    for request_id in due:
        one = seen[request_id]
        assert written[request_id] == (one.status, one.prompt_tokens, one.completion_tokens)
    # What is written and was not seen was in flight: at most one for each client.
    assert len(set(written) - set(seen)) <= 4


async def test_after_sigterm_nothing_is_missing(tmp_path: Path) -> None:
    with running_server(write_config(tmp_path, ledger="sqlite")) as server:
        answers = dict(await asyncio.gather(*(complete(server) for _ in range(40))))
        assert server.stop() == 0
    written = rows(tmp_path)
    assert set(answers) == set(written)
    done = subprocess.run(
        command("usage", "--ledger", f"sqlite:///{tmp_path / 'ledger.db'}", "--by", "model", "--json"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (total,) = json.loads(done.stdout)
    assert total["requests"] == 40
    assert total["completion_tokens"] == sum(one.completion_tokens for one in answers.values())


async def test_workers_share_limits_and_ledger(tmp_path: Path) -> None:
    config = write_config(tmp_path, ledger="sqlite", workers=2, address_limits={"requests_per_minute": 30})
    begun = time.monotonic()
    with running_server(config) as server:
        answers = dict(await asyncio.gather(*(complete(server) for _ in range(100))))
        granted = sum(one.status == 200 for one in answers.values())
        assert 30 <= granted <= 30 + (time.monotonic() - begun) * 30 / 60
        assert {one.status for one in answers.values()} == {200, 429}
    written = rows(tmp_path)
    assert {request_id: row[0] for request_id, row in written.items()} == {
        request_id: one.status for request_id, one in answers.items()
    }


async def test_a_keys_life(tmp_path: Path) -> None:
    config = write_config(tmp_path, key_store="sqlite", ledger="sqlite")

    def keys(*arguments: str) -> Any:
        argv = command("keys", *arguments, *config, "--json")
        return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)

    with running_server(config) as server:
        assert (await complete(server))[1].status == 401, "a store without a key lets nobody in"
        made = await asyncio.to_thread(keys, "create", "--name", "bob", "--requests-per-minute", "600")
        assert (await complete(server, key=made["secret"]))[1].status == 200
        rotated = await asyncio.to_thread(keys, "rotate", made["id"])
        assert (await complete(server, key=rotated["secret"]))[1].status == 200
        await asyncio.to_thread(keys, "revoke", made["id"])
        revoked = time.monotonic()
        while (await complete(server, key=rotated["secret"]))[1].status == 200:
            await asyncio.sleep(0.05)
        assert time.monotonic() - revoked < 5
        assert (await complete(server, key=made["secret"]))[1].status == 401
        assert made["secret"] not in server.log
