"""One suite, every engine with a process of its own: it dies, and it hangs, under real requests."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from importlib import import_module
from typing import Any

import aiohttp
import pytest

from tests.conformance.client import COMPLETION_PATH, body_of, complete, content, frames, get
from tests.conformance.engines import Case, children, served
from tests.conformance.test_engines import endless

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="package")]

#: From a death to the next answer: what a fresh start takes, and some more.
BACK_WITHIN_S = 600


def process_of(case: Case) -> int:
    """The engine's process, whose death is the engine's. It changes with every restart."""
    if not case.pids:
        pytest.skip("it has no process of its own")
    living = [pid for pid in children() if pid in case.pids] or sorted(children())
    assert len(living) == 1
    return living[0]


async def until(case: Case, path: str, status: int, within_s: float) -> Any:
    """The first reply of a probe with this status."""
    deadline = time.monotonic() + within_s
    while (reply := await get(case.url + path)).status != status:
        assert time.monotonic() < deadline, f"{path} says {reply.status} after {within_s} s: {reply.text}"
        await asyncio.sleep(0.02)
    return reply.json


async def stream(case: Case, url: str, begun: asyncio.Event, max_tokens: int = 400) -> list[Any]:
    body = body_of(COMPLETION_PATH, case, max_tokens=max_tokens, stream=True, prompt="a b", **endless(case))
    events = []
    try:
        async with aiohttp.ClientSession() as session, session.post(url + COMPLETION_PATH, json=body) as response:
            if response.status != 200:
                return [await response.json()]
            async for event in frames(response):
                events.append(event)
                begun.set()
    finally:
        begun.set()
    return events


async def test_an_engine_that_is_killed_comes_back(case: Case) -> None:
    """Each request in flight ends in one error; /health and /ready say so; then it answers again."""
    pid = process_of(case)
    begun = asyncio.Event()
    running = [asyncio.create_task(stream(case, case.url, begun)) for _ in range(4)]
    await asyncio.wait_for(begun.wait(), 60)
    os.kill(pid, signal.SIGKILL)
    report = await until(case, "/ready", 503, 30)
    assert report["models"][case.model]["ready"] is False
    assert (await get(f"{case.url}/health")).status in (200, 503)
    for events in await asyncio.wait_for(asyncio.gather(*running), 30):
        errors = [event for event in events if event != "[DONE]" and "error" in event]
        assert len(errors) == 1, events[-2:]
        assert events[-1] is errors[0], "an error is the last that is said"
        assert errors[0]["error"]["type"] in ("server_error", "service_unavailable")
    await until(case, "/ready", 200, BACK_WITHIN_S)
    assert content(await complete(case))
    assert process_of(case) != pid


async def test_an_engine_that_hangs_is_found_out(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, not dead: requests end at their deadline, /health says that nothing moves; it goes on when it can."""
    pid = process_of(case)
    if case.patience:
        module, _, name = case.patience.partition(":")
        monkeypatch.setattr(import_module(module), name, 1.5)
    started = time.monotonic()
    assert content(await complete(case, max_tokens=1))
    deadline_s = max(3.0, 5 * (time.monotonic() - started))
    async with served(case.engine, request_timeout_s=deadline_s) as url:
        begun = asyncio.Event()
        running = asyncio.create_task(stream(case, url, begun))
        await asyncio.wait_for(begun.wait(), 60)
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            late = await complete(case, url=url)
            assert late.status == 504
            assert late.error["code"] == "request_timeout"
            assert time.monotonic() - started < deadline_s + 5
            events = await asyncio.wait_for(running, 10)
            assert events[-1]["error"]["code"] == "request_timeout"
            report = await until(case, "/ready", 503, 10)
            state = report["models"][case.model]
            assert state["ready"] is False
            assert state["reason"]
            if case.name != "openai":  # of a remote one no more can be known than what it says
                report = await until(case, "/health", 503, 10)
                assert report["status"] == "stalled"
                assert report["models"][case.model]["progressing"] is False
        finally:
            os.kill(pid, signal.SIGCONT)
    await until(case, "/ready", 200, 60)
    assert content(await complete(case))
