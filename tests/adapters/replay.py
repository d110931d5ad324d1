"""Engines that only replay: a server on a real socket, and a backend whose chunks are cut exactly where a test says."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, cast

import aiohttp

from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.engine.base import Engine
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, Prompt, SamplingParams, Usage

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """One HTTP answer. `end`: the body is whole, the connection breaks, or it stays open until the client goes."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Sequence[bytes] | None = None
    end: Literal["whole", "broken", "open"] = "whole"


def json_reply(value: Any, status: int = 200, **more: Any) -> Reply:
    return Reply(json.dumps(value).encode(), status, **more)


def event_stream(body: bytes, **more: Any) -> Reply:
    return Reply(body, content_type="text/event-stream; charset=utf-8", **more)


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class ReplayServer:
    """Answers every path with the replies given for it, the last one again and again; 404 for others."""

    def __init__(self, replies: Mapping[str, Reply | Sequence[Reply]]) -> None:
        self._replies = {path: [reply] if isinstance(reply, Reply) else list(reply) for path, reply in replies.items()}
        self.received: list[Received] = []
        #: Set when a client went away from an answer that was still open.
        self.abandoned = asyncio.Event()
        self.url = ""

    def bodies(self, path: str) -> list[Any]:
        return [request.body for request in self.received if request.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()).strip():
                method, path, _ = line.decode().split()
                headers = {}
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                self.received.append(Received(method, path, headers, json.loads(data) if data else None))
                queue = self._replies.get(path, [json_reply({"error": "not found"}, 404)])
                if not await self._answer(queue.pop(0) if len(queue) > 1 else queue[0], reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = [f"HTTP/1.1 {reply.status} Status", f"Content-Type: {reply.content_type}", "Transfer-Encoding: chunked"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
        for chunk in reply.chunks if reply.chunks is not None else [reply.body]:
            if chunk:
                writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                await writer.drain()
        if reply.end == "open":
            await reader.read()
            self.abandoned.set()
            return False
        if reply.end == "broken":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@asynccontextmanager
async def replaying(replies: Mapping[str, Reply | Sequence[Reply]]) -> AsyncGenerator[ReplayServer, None]:
    replay = ReplayServer(replies)
    server = await asyncio.start_server(replay.serve, "127.0.0.1", 0)
    replay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield replay
    finally:
        server.close()


class CutBackend(HttpBackend):
    """The real backend over chunks instead of a socket. Each post takes the next entry of `bodies`, then the last."""

    def __init__(self, *bodies: Sequence[bytes], content_type: str = "text/event-stream") -> None:
        super().__init__("test", "http://127.0.0.1:1")
        self._bodies = list(bodies)
        self._content_type = content_type
        self.posted: list[tuple[str, Mapping[str, Any]]] = []

    async def _send(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        self.posted.append((path, json.loads(json.dumps(body))))
        chunks = self._bodies.pop(0) if len(self._bodies) > 1 else self._bodies[0]

        async def iter_any() -> AsyncGenerator[bytes, None]:
            for chunk in chunks:
                yield chunk

        async def read() -> bytes:
            return b"".join(chunks)

        response = SimpleNamespace(
            content=SimpleNamespace(iter_any=iter_any), content_type=self._content_type, read=read, close=lambda: None
        )
        return cast(aiohttp.ClientResponse, response)


def one_cut(body: bytes) -> Iterator[list[bytes]]:
    """The body in two pieces, cut at every place, and uncut."""
    for place in range(len(body)):
        yield [body[:place], body[place:]]


def many_cuts(body: bytes, times: int = 50) -> Iterator[list[bytes]]:
    """The body byte by byte, and in random pieces by a fixed seed."""
    yield [body[place : place + 1] for place in range(len(body))]
    dice = random.Random(7)
    for _ in range(times):
        places = sorted(dice.sample(range(1, len(body)), min(dice.randint(2, 40), len(body) - 1)))
        yield [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]


def request(
    prompt: Prompt = "What is AI?", *, echo: bool = False, tool_choice: Any = None, **sampling: Any
) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        model="m",
        prompt=prompt,
        sampling=SamplingParams(**sampling),
        echo=echo,
        tool_choice=tool_choice,
    )


def chat(*texts: str, **more: Any) -> ChatPrompt:
    return ChatPrompt(messages=tuple({"role": "user", "content": text} for text in texts), **more)


@dataclass(frozen=True)
class Outcome:
    """What the deltas of one choice come to."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish_reason: str | None
    stop_reason: int | str | None


def outcome(deltas: Sequence[Delta], index: int = 0) -> Outcome:
    own = [delta for delta in deltas if delta.index == index]
    ends = [delta for delta in own if delta.finish_reason is not None]
    assert len(ends) == 1, "each choice ends exactly once"
    assert ends[0] is own[-1], "nothing follows the end of a choice"
    return Outcome(
        "".join(delta.text for delta in own),
        tuple(token_id for delta in own for token_id in delta.token_ids),
        tuple(entry.logprob for delta in own for entry in delta.logprobs or ()),
        ends[0].finish_reason,
        ends[0].stop_reason,
    )


def usage_of(deltas: Sequence[Delta]) -> Usage:
    usage = deltas[-1].usage
    assert usage is not None, "the last delta carries the usage"
    return usage


async def drain(stream: AsyncGenerator[T, None], into: list[T]) -> None:
    """Everything that comes before the stream ends or fails."""
    async for item in stream:
        into.append(item)


async def run(engine: Engine, wanted: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(wanted)]
