"""The front's end of the wire against a core that a test plays: errors, silence, and outcomes that nobody takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from llm_inference.engine.base import EngineStats
from llm_inference.engine.types import GenerationDefaults, SamplingParams
from llm_inference.errors import EngineError, InvalidRequestError, RequestTimeoutError
from llm_inference.native import client as client_module
from llm_inference.native.client import CoreClient
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.request import CoreRequest, SampledToken
from llm_inference.native.wire import Abort, CoreReport, Failure, FromCore, FromFront, Hello, Ready, Step, Submit

REPORT = CoreReport(
    precision="float32", num_kv_blocks=1, block_size=1, weight_bytes=0, kv_cache_bytes=0, runner="played"
)


class PlayedCore:
    """A ROUTER socket that says what the test wants."""

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._front = b""

    async def hear(self) -> FromFront:
        self._front, payload = await asyncio.wait_for(self._socket.recv_multipart(), 30)
        return msgspec.msgpack.decode(payload, type=FromFront)

    async def say(self, message: FromCore) -> None:
        await self._socket.send_multipart([self._front, msgspec.msgpack.encode(message)])

    async def token(self, request_id: str, number: int) -> None:
        output = SequenceOutput(request_id=request_id, index=0, tokens=(SampledToken(number),))
        await self.say(Step(EngineStats(num_steps=number), (output,)))


@contextmanager
def router(path: str) -> Iterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"ipc://{path}")
    try:
        yield socket
    finally:
        context.destroy(linger=0)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[CoreClient, PlayedCore]]:
    path = str(tmp_path / "core.sock")
    with router(path) as socket:
        core, client = PlayedCore(socket), CoreClient(path)
        connecting = asyncio.create_task(client.connect())
        assert isinstance(await core.hear(), Hello)
        await core.say(Ready(REPORT))
        assert await connecting == REPORT
        yield client, core
        client.close()


def request(request_id: str) -> CoreRequest:
    sampling = SamplingParams(max_tokens=5).resolve(GenerationDefaults())
    return CoreRequest(request_id=request_id, prompt_token_ids=(1,), sampling=sampling)


async def test_a_failure_keeps_its_kind(pair: tuple[CoreClient, PlayedCore]) -> None:
    client, core = pair
    queue = client.submit(request("r"))
    assert isinstance(await core.hear(), Submit)
    await core.say(Step(EngineStats(), failures=(Failure("r", "too complex", "InvalidRequestError", "tools"),)))
    error = await queue.get()
    assert isinstance(error, InvalidRequestError)
    assert (error.message, error.param) == ("too complex", "tools")
    await core.say(Step(EngineStats(), failures=(Failure("r", "died"),)))
    assert isinstance(await queue.get(), EngineError)


async def test_outcomes_that_nobody_takes_are_bounded(
    pair: tuple[CoreClient, PlayedCore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_BACKLOG", 5)
    client, core = pair
    slow, quick = client.submit(request("slow")), client.submit(request("quick"))
    assert {(await core.hear()).request.request_id for _ in range(2)} == {"slow", "quick"}  # type: ignore[union-attr]
    for number in range(1, 9):
        await core.token("slow", number)
        await core.token("quick", number)
        assert isinstance(await quick.get(), SequenceOutput)
    assert await core.hear() == Abort("slow")
    items = [slow.get_nowait() for _ in range(slow.qsize())]
    assert len(items) == 6, "what came in time, and why it ends"
    assert isinstance(items[-1], RequestTimeoutError)
    assert client.num_in_flight == 1


async def test_a_core_that_says_nothing_is_known_without_requests(pair: tuple[CoreClient, PlayedCore]) -> None:
    client, core = pair
    await asyncio.sleep(0.3)
    assert client.stalled_s == 0
    assert client.silent_s >= 0.3
    await core.say(Step(EngineStats()))
    for _ in range(1000):
        if client.silent_s < 0.3:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("it has not noticed what was said")
    client.close()
    assert client.silent_s == 0


async def test_what_a_core_said_before_it_died_is_heard(tmp_path: Path) -> None:
    path = str(tmp_path / "core.sock")
    with router(path) as socket:
        core, client = PlayedCore(socket), CoreClient(path)
        connecting = asyncio.create_task(client.connect())
        assert isinstance(await core.hear(), Hello)
        await core.say(Ready(REPORT))
        await connecting
        queue = client.submit(request("r"))
        assert isinstance(await core.hear(), Submit)
        for number in range(200):
            await core.token("r", number)
        time.sleep(0.5)  # what is sent leaves the core, and this loop reads nothing of it
    items = [await asyncio.wait_for(queue.get(), 5) for _ in range(201)]
    assert all(isinstance(item, SequenceOutput) for item in items[:-1])
    assert isinstance(items[-1], EngineError)
    client.close()
