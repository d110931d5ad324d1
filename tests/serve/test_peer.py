from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import EngineError, NotReadyError
from llm_inference.serve.peer import Answering, Peer, PeerGoneError


async def nothing(what: str, content: Any) -> Any:
    return None


@asynccontextmanager
async def pair(tmp_path: Path, ours: Answering, theirs: Answering = nothing) -> AsyncIterator[tuple[Peer, Peer]]:
    """(the one that connects, the one that listens), both running."""
    arrived: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, ours)
        arrived.set_result(peer)
        await peer.run()

    server = await asyncio.start_unix_server(serve, tmp_path / "peer.sock")
    client = Peer(*await asyncio.open_unix_connection(tmp_path / "peer.sock"), theirs)
    running = asyncio.create_task(client.run())
    try:
        yield client, await arrived
    finally:
        client.close()
        await asyncio.gather(running, return_exceptions=True)
        server.close()


async def test_both_ask_and_answers_come_in_any_order(tmp_path: Path) -> None:
    async def doubled(what: str, content: Any) -> Any:
        await asyncio.sleep(0.001 * (10 - content))
        return 2 * content

    async with pair(tmp_path, doubled, doubled) as (client, server):
        answers = await asyncio.gather(
            *(client.ask("double", number, int) for number in range(10)),
            *(server.ask("double", number, int) for number in range(10)),
        )
    assert answers == [2 * number for number in range(10)] * 2


async def test_errors_are_raised_as_what_they_were(tmp_path: Path) -> None:
    async def fail(what: str, content: Any) -> Any:
        if what == "ours":
            raise NotReadyError("not yet", code="model_loading", retry_after_s=3.0)
        raise ZeroDivisionError("a defect")

    async with pair(tmp_path, fail) as (client, _):
        with pytest.raises(NotReadyError, match="not yet") as refused:
            await client.ask("ours", None, int)
        assert (refused.value.public_code, refused.value.retry_after_s) == ("model_loading", 3.0)
        with pytest.raises(EngineError, match="theirs failed: ZeroDivisionError"):
            await client.ask("theirs", None, int)


async def test_the_end_of_the_other_one_ends_every_question(tmp_path: Path) -> None:
    async def hang(what: str, content: Any) -> Any:
        await asyncio.sleep(60)

    async with pair(tmp_path, hang) as (client, server):
        asking = asyncio.create_task(client.ask("x", None, int))
        await asyncio.sleep(0.02)
        server.close()
        with pytest.raises(PeerGoneError):
            await asking
        with pytest.raises(PeerGoneError):
            await client.ask("x", None, int)


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00"])
async def test_what_is_no_frame_ends_the_connection(frame: bytes, tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Peer(reader, writer, nothing).run()
        ended.set()

    server = await asyncio.start_unix_server(serve, tmp_path / "peer.sock")
    _, writer = await asyncio.open_unix_connection(tmp_path / "peer.sock")
    writer.write(frame)
    writer.write_eof()
    await asyncio.wait_for(ended.wait(), 30)
    writer.close()
    server.close()
