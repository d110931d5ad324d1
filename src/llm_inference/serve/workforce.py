"""Keeper and gateways in different processes: the parent's side and the worker's, over one private Unix socket.

parent   Keeper ── DeskAfar ──┐                        ┌── Desk      worker
         Reloader             ├── Peer ═══ Peer ───────┤
         answers wake, act ◄──┘                        └── Oversight (a Fleet)

A worker that starts, also in place of one that died, is told what is served now; while the configuration changes it
waits. One that dies meanwhile is not waited for, and one that does not answer is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import SecretStr

from llm_inference.config.schema import ModelConfig, ServerConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.held import HeldState
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.errors import EngineError, NotReadyError, StartupError
from llm_inference.gateway.admin.fleet import Action, Fleet, FleetReport, ReloadReport, WorkerReport
from llm_inference.serve.desk import Desk, Post
from llm_inference.serve.keeper import Keeper
from llm_inference.serve.peer import Peer, PeerGoneError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SOCKET = "keeper.sock"
#: How long a worker may take to answer: at once as a rule, and for what has it attach to an engine.
_PATIENCE_S = 30.0
_LONG_S = 600.0
#: What a desk is asked as it is, and what comes back.
_DESK_CALLS: dict[str, type[Any] | None] = {
    "commit": None,
    "rollback": None,
    "retire": None,
    "attach": None,
    "mark": None,
    "shut_if_idle": bool,
    "drained": bool,
    "detach": None,
    "forget": None,
    "report": WorkerReport,
}


class Served(msgspec.Struct, frozen=True):
    """`config`: the whole configuration as JSON, keys included."""

    config: str
    posts: list[Post]

    @classmethod
    def of(cls, config: ServerConfig, posts: Sequence[Post]) -> Served:
        return cls(json.dumps(config.model_dump(exclude_unset=True), default=_reveal), list(posts))

    def read(self) -> ServerConfig:
        return ServerConfig.model_validate(json.loads(self.config))


class DeskAfar:
    """The parent's side of a worker's `Desk`. Everything may raise `PeerGoneError`. `kill`: ends a hung worker."""

    def __init__(self, peer: Peer, kill: Callable[[], None] = lambda: None) -> None:
        self._peer = peer
        self._kill = kill

    async def prepare(self, config: ServerConfig, posts: Sequence[Post]) -> None:
        await self._answer("prepare", [Served.of(config, posts)], type(None), _LONG_S)

    async def commit(self) -> None:
        await self._ask("commit")

    async def rollback(self) -> None:
        await self._ask("rollback")

    async def retire(self) -> None:
        await self._ask("retire")

    async def attach(self, run_dir: str) -> None:
        await self._ask("attach", run_dir)

    async def mark(self, run_dir: str, state: HeldState, reason: str, barred: bool) -> None:
        await self._ask("mark", run_dir, state, reason, barred)

    async def shut_if_idle(self, run_dir: str, for_s: float) -> bool:
        return await self._answer("shut_if_idle", [run_dir, for_s], bool)

    async def drained(self, run_dir: str, within_s: float) -> bool:
        return await self._answer("drained", [run_dir, within_s], bool, within_s + _PATIENCE_S)

    async def detach(self, run_dir: str) -> None:
        await self._ask("detach", run_dir)

    async def forget(self, run_dir: str) -> None:
        await self._ask("forget", run_dir)

    async def report(self) -> WorkerReport:
        return await self._answer("report", [], WorkerReport)

    async def _ask(self, what: str, *content: object) -> None:
        await self._answer(what, list(content), type(None), _LONG_S if what == "attach" else _PATIENCE_S)

    async def _answer(self, what: str, content: list[object], kind: type[T], within_s: float = _PATIENCE_S) -> T:
        try:
            return await asyncio.wait_for(self._peer.ask(what, content, kind), within_s)
        except asyncio.TimeoutError as error:
            # The others must not wait for it, and connections that it is given would hang.
            logger.error("a gateway worker does not answer (%s); it is killed and started anew", what)
            self._peer.close()
            self._kill()
            raise PeerGoneError("the worker does not answer") from error


@contextlib.asynccontextmanager
async def overseeing(keeper: Keeper, fleet: Fleet, run_dir: Path) -> AsyncIterator[None]:
    """The parent's side: workers that come are told what is served, and heard."""
    peers: set[Peer] = set()
    running: set[asyncio.Future[Any]] = set()

    def to_its_end(work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Also when the worker that passed it on dies meanwhile."""
        running.add(task := asyncio.ensure_future(work))
        task.add_done_callback(running.discard)
        return asyncio.shield(task)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        desks: list[DeskAfar] = []

        async def answer(what: str, content: Any) -> Any:
            if what == "hello":
                desks.append(DeskAfar(peer, _ending(writer)))
                return Served.of(*await keeper.join(desks[-1], prepare=False))
            if what == "wake":
                return await keeper.wake(content)
            if what == "act":
                return await to_its_end(fleet.act(*content))
            if what == "report":
                return await fleet.report()
            if what == "reload":
                return await to_its_end(fleet.reload())
            raise EngineError(f"no such question: {what}")

        peer = Peer(reader, writer, answer)
        peers.add(peer)
        try:
            await peer.run()
        finally:
            peers.discard(peer)
            for desk in desks:
                keeper.desks.remove(desk)

    path = run_dir / _SOCKET
    server = await asyncio.start_unix_server(serve, path)
    await asyncio.to_thread(path.chmod, 0o600)
    try:
        yield
    finally:
        server.close()
        for peer in tuple(peers):
            peer.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Oversight:
    """A worker's side: a `Fleet`, and the ear of its desk. Use `overseen`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def hello(self) -> Served:
        return await self._peer.ask("hello", None, Served)

    async def wake(self, run_dir: str) -> None:
        """Raises `NotReadyError`."""
        await self._said("wake", run_dir, type(None))

    async def reload(self) -> ReloadReport:
        return await self._said("reload", None, ReloadReport)

    async def act(self, action: Action, replicas: Sequence[str]) -> None:
        await self._said("act", [action, list(replicas)], type(None))

    async def report(self) -> FleetReport:
        return await self._said("report", None, FleetReport)

    async def _said(self, what: str, content: object, kind: type[T]) -> T:
        try:
            return await self._peer.ask(what, content, kind)
        except PeerGoneError as error:
            raise NotReadyError("This server is ending; try another one.", retry_after_s=5.0) from error


@contextlib.asynccontextmanager
async def overseen(
    run_dir: Path, context: EngineContext, worker: int, *, on_lost: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[ServerConfig, Desk, Oversight]]:
    """The configuration to serve, the desk with its engines attached, and the parent. Raises `StartupError`.

    `on_lost`: the parent no longer speaks with us; what is served may be out of date from then on.
    """
    ready: asyncio.Future[Desk] = asyncio.get_running_loop().create_future()

    async def answer(what: str, content: Any) -> Any:
        desk = await asyncio.shield(ready)
        if what == "prepare":
            served = msgspec.convert(content[0], Served)
            return await desk.prepare(served.read(), served.posts)
        if what in _DESK_CALLS:
            return await getattr(desk, what)(*content)
        raise EngineError(f"no such question: {what}")

    try:
        reader, writer = await asyncio.open_unix_connection(run_dir / _SOCKET)
    except OSError as error:
        raise StartupError(f"a gateway worker cannot reach its server at {run_dir / _SOCKET}: {error}") from error
    peer = Peer(reader, writer, answer)
    hearing = asyncio.create_task(peer.run())
    hearing.add_done_callback(lambda task: None if task.cancelled() else on_lost())
    try:
        oversight = Oversight(peer)
        served = await oversight.hello()
        config = served.read()
        desk = Desk(_AttachedEngines(context), oversight.wake, max_wait_s=config.loading.max_wait_s, worker=worker)
        try:
            await desk.prepare(config, served.posts)
            await desk.commit()
            ready.set_result(desk)
            yield config, desk, oversight
        finally:
            await desk.close()
    finally:
        ready.cancel()
        hearing.cancel()
        peer.close()
        await asyncio.gather(hearing, return_exceptions=True)


class _AttachedEngines:
    """A `Source`: engines that the parent owns; they are found by their run directories."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def plan(self, model: ModelConfig, post: Post) -> Engine:
        context = dataclasses.replace(
            self._context, run_dir=Path(post.run_dir), owns_core=False, num_siblings=post.num_siblings
        )
        return await asyncio.to_thread(engine_factory(model.engine), model, context)

    async def start(self, engine: Engine) -> None:
        await engine.start()

    async def stop(self, engine: Engine) -> None:
        await engine.stop(0)


def _ending(writer: asyncio.StreamWriter) -> Callable[[], None]:
    """What kills the process at the other end, unless it is this one, or the system does not say which it is."""
    if not hasattr(socket, "SO_PEERCRED"):
        return lambda: None
    told = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", told)[0]

    def kill() -> None:
        if pid not in (0, os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    return kill


def _reveal(value: object) -> str:
    """A secret as text, for the private socket alone."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    raise TypeError(f"cannot write {type(value).__name__} to a worker's configuration")
