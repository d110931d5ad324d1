from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from llm_inference.errors import EngineError, RequestTimeoutError
from llm_inference.gateway.interrupt import Interrupt


class Client:
    """`receive` of a client that leaves when told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_block_that_ends_by_itself_leaves_nothing_behind() -> None:
    client = Client()
    before = asyncio.all_tasks()
    async with Interrupt(client.receive, 10):
        await asyncio.sleep(0)
    client.left.set()
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == before


async def test_disconnect_ends_the_block_after_its_cleanup() -> None:
    client, cleaned = Client(), []

    async def block() -> None:
        async with Interrupt(client.receive, None):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)  # not cancelled a second time
                cleaned.append(True)

    asyncio.get_running_loop().call_later(0.01, client.left.set)
    with pytest.raises(ClientDisconnect):
        await block()
    assert cleaned == [True]
    await asyncio.sleep(0)  # the task itself is not cancelled


async def test_time_limit() -> None:
    with pytest.raises(RequestTimeoutError, match=r"0\.01 s"):
        async with Interrupt(Client().receive, 0.01):
            await asyncio.sleep(60)


async def test_only_the_first_reason_counts() -> None:
    client = Client()
    client.left.set()

    async def block() -> None:
        async with Interrupt(client.receive, 0.005):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.02)

    with pytest.raises(ClientDisconnect):
        await block()


async def test_reason_wins_over_what_the_block_made_of_it() -> None:
    client = Client()
    client.left.set()

    async def block() -> None:
        async with Interrupt(client.receive, None):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                raise EngineError("aborted") from error

    with pytest.raises(ClientDisconnect):
        await block()


async def test_errors_and_foreign_cancellation_pass() -> None:
    with pytest.raises(EngineError):
        async with Interrupt(Client().receive, 10):
            raise EngineError("mine")

    async def cancelled() -> None:
        async with Interrupt(Client().receive, 10):
            await asyncio.sleep(60)

    task = asyncio.create_task(cancelled())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_timeout_around_it_still_works() -> None:
    client = Client()
    client.left.set()

    async def inner() -> str:
        try:
            async with Interrupt(client.receive, None):
                await asyncio.sleep(60)
        except ClientDisconnect:
            await asyncio.sleep(0.01)
        return "went on"

    assert await asyncio.wait_for(inner(), 30) == "went on"
