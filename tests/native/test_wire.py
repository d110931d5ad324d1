"""Front and core over a real socket: the server loop on a thread, a tiny model behind it, the client in front."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from llm_inference.errors import ContextLengthError, EngineError, NotReadyError, OutOfMemoryError
from llm_inference.native.client import CoreClient, Item
from llm_inference.native.core import EngineCore
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.server import CoreServer, bind
from llm_inference.native.wire import CoreReport
from tests.native.cores import make_core, make_request
from tests.native.tiny_models import save_tiny

REPORT = CoreReport(
    precision="float32", num_kv_blocks=200, block_size=4, weight_bytes=1, kv_cache_bytes=1, runner="torch on cpu"
)


class RunningCore:
    """`CoreServer.run` on a thread."""

    def __init__(self, core: EngineCore, path: str) -> None:
        self.core = core
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.server = CoreServer(bind(self.context, path))
        self.thread = threading.Thread(target=self.server.run, args=(core, REPORT))
        self.thread.start()

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.context.destroy(linger=0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCore]:
    core = RunningCore(make_core(save_tiny(tmp_path / "model")), str(tmp_path / "core.sock"))
    try:
        yield core
    finally:
        core.stop()


@pytest.fixture
async def client(running: RunningCore, tmp_path: Path) -> AsyncGenerator[CoreClient, None]:
    client = CoreClient(str(tmp_path / "core.sock"))
    assert await asyncio.wait_for(client.connect(), 30) == REPORT
    yield client
    client.close()


async def outputs(queue: asyncio.Queue[Item]) -> list[int]:
    """Token ids until the finish reason; raises what ends it early."""
    token_ids: list[int] = []
    while True:
        item = await asyncio.wait_for(queue.get(), 10)
        if isinstance(item, Exception):
            raise item
        assert isinstance(item, SequenceOutput)
        token_ids += [token.token_id for token in item.tokens]
        if item.finish_reason is not None:
            return token_ids


async def until(condition: object) -> None:
    assert callable(condition)
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the condition did not come true in time")


def test_the_socket_is_private(running: RunningCore, tmp_path: Path) -> None:
    assert (tmp_path / "core.sock").stat().st_mode & 0o777 == 0o600


async def test_a_request_goes_through(client: CoreClient) -> None:
    queue = client.submit(make_request("a", [3, 4, 5], max_tokens=7))
    assert len(await outputs(queue)) == 7
    client.release("a")
    await until(lambda: client.stats.num_free_kv_blocks == client.stats.num_kv_blocks)
    assert client.stats.generation_tokens == 7
    assert client.stalled_s == 0


async def test_what_the_core_refuses_comes_back_as_the_same_error(client: CoreClient) -> None:
    queue = client.submit(make_request("big", range(3, 90), max_tokens=250))
    with pytest.raises(ContextLengthError):
        await outputs(client.submit(make_request("huge", [3] * 300)))
    assert await outputs(queue)


async def test_abort_frees_the_work(client: CoreClient, running: RunningCore) -> None:
    client.submit(make_request("long", [3, 4, 5], max_tokens=200))
    await until(lambda: client.stats.num_running == 1)
    client.abort("long")
    await until(lambda: client.stats.num_running == 0)
    assert client.num_in_flight == 0


async def test_two_fronts_get_their_own_answers_and_a_lost_one_ends_its_work(
    client: CoreClient, running: RunningCore, tmp_path: Path
) -> None:
    other = CoreClient(str(tmp_path / "core.sock"))
    await other.connect()
    other.submit(make_request("theirs", [3, 4], max_tokens=200))
    queue = client.submit(make_request("ours", [3, 4], max_tokens=30))
    await until(lambda: running.core.stats().num_running == 2)
    other.close()
    assert len(await outputs(queue)) == 30
    await until(lambda: not running.core.has_work)


async def test_a_core_that_goes_away_ends_requests_with_one_error(tmp_path: Path) -> None:
    path = str(tmp_path / "core.sock")
    running = RunningCore(make_core(save_tiny(tmp_path / "model")), path)
    client = CoreClient(path)
    lost: list[str] = []
    client.on_lost = lost.append
    await client.connect()
    queue = client.submit(make_request("a", [3, 4, 5], max_tokens=240))
    await asyncio.wait_for(queue.get(), 30)
    running.stop()
    with pytest.raises(EngineError, match="ended while this request was running"):
        await outputs(queue)
    assert len(lost) == 1
    assert not client.connected
    with pytest.raises(NotReadyError):
        client.submit(make_request("b", [3]))
    again = RunningCore(make_core(save_tiny(tmp_path / "model")), path)
    await asyncio.wait_for(client.connect(), 30)
    assert len(await outputs(client.submit(make_request("c", [3], max_tokens=3)))) == 3
    client.close()
    again.stop()


async def test_a_refused_start_reaches_the_front(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = CoreServer(bind(context, str(tmp_path / "core.sock")))
    client = CoreClient(str(tmp_path / "core.sock"))
    connecting = asyncio.create_task(client.connect())
    told = await asyncio.to_thread(server.refuse, OutOfMemoryError("too big"))
    assert told
    with pytest.raises(OutOfMemoryError, match="too big"):
        await asyncio.wait_for(connecting, 30)
    client.close()
    context.destroy(linger=0)


async def test_garbage_on_the_socket_harms_nobody(client: CoreClient, running: RunningCore, tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"ipc://{tmp_path / 'core.sock'}")
    for payload in (b"", b"\x80\x04garbage", msgspec.msgpack.encode({"type": "Nonsense"}), b"\xff" * 1000):
        socket.send(payload)
    queue = client.submit(make_request("a", [3, 4, 5], max_tokens=3))
    assert len(await outputs(queue)) == 3
    context.destroy(linger=0)
