from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llm_inference.gateway.tenants import failover
from llm_inference.gateway.tenants.failover import FailoverLimits
from llm_inference.gateway.tenants.limit_socket import AWAY, LimitServer, SocketLimits
from llm_inference.gateway.tenants.limit_store import Use
from tests.gateway.serving import until
from tests.gateway.tenants.charges import charges


async def test_workers_share_one_count(tmp_path: Path) -> None:
    server = LimitServer()
    await server.start(tmp_path / "limits.sock")
    assert (tmp_path / "limits.sock").stat().st_mode & 0o777 == 0o600
    workers = [SocketLimits(tmp_path / "limits.sock") for _ in range(3)]
    wanted = charges(10, tokens_per_day=400, max_concurrent_requests=1000)
    verdicts = await asyncio.gather(*(workers[number % 3].reserve(wanted, f"r{number}") for number in range(99)))
    assert sum(verdict.refused is None for verdict in verdicts) == 40
    await workers[0].settle([Use(wanted[1], 4), Use(wanted[0], 1)], "r0")
    await until(lambda: server.limits.decide(charges(0, tokens_per_day=400), "x").states[0].remaining == 6)
    for worker in workers:
        await worker.close()
    await server.close()


async def test_what_a_killed_worker_held_is_given_back(tmp_path: Path) -> None:
    server = LimitServer()
    await server.start(tmp_path / "limits.sock")
    killed, other = SocketLimits(tmp_path / "limits.sock"), SocketLimits(tmp_path / "limits.sock")
    wanted = charges(max_concurrent_requests=1)
    assert (await killed.reserve(wanted, "a")).refused is None
    assert (await other.reserve(wanted, "b")).refused == 0
    await killed.close()
    await until(lambda: server.limits.decide(charges(max_concurrent_requests=2), "x").states[0].remaining == 1)
    await other.close()
    await server.close()


async def test_without_a_parent_each_counts_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "_PAUSE_S", 0.0)
    wanted = charges(requests_per_minute=2)
    store = FailoverLimits(SocketLimits(tmp_path / "limits.sock"), "local", AWAY)
    assert (await store.reserve(wanted, "a")).refused is None
    server = LimitServer()
    await server.start(tmp_path / "limits.sock")
    verdicts = [await store.reserve(wanted, "b") for _ in range(3)]
    assert [verdict.refused for verdict in verdicts] == [None, None, 0], "the parent's count begins anew"
    await server.close()
    await asyncio.sleep(0.05)
    assert (await store.reserve(wanted, "c")).refused is None, "the second of its own two"
    await store.close()


async def test_who_did_not_wait_for_the_answer_holds_nothing(tmp_path: Path) -> None:
    server = LimitServer()
    await server.start(tmp_path / "limits.sock")
    worker = SocketLimits(tmp_path / "limits.sock")
    wanted = charges(30, max_concurrent_requests=1, tokens_per_day=40)
    for lease in ("granted", "refused"):
        asking = asyncio.create_task(worker.reserve(wanted, lease))
        while not worker._waiting:  # the question is out, and the answer not yet in
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        if lease == "granted":
            await until(lambda: server.limits.decide(charges(0, tokens_per_day=40), "x").states[0].remaining == 40)
            assert (await worker.reserve(wanted, "held")).refused is None
    await asyncio.sleep(0.05)
    assert (await worker.reserve(wanted, "next")).refused == 0, "the refused one gave back what it never had"
    await worker.close()
    await server.close()
