"""The responses that run engines: hold the status, forward deltas, give the permit back at the very end.

    permit ── generate ── first delta? ── no: raise → plain JSON error with its own status
                              │ yes
                              ├── EventStream: 200, frames …, [DONE]   an error now: one error frame, then close
                              └── WholeReply:  collect …, one JSON

They know nothing of an API's shapes: a `FrameWriter` or a `Collector` makes the bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llm_inference.engine.base import Engine
from llm_inference.engine.types import Delta, GenerateRequest, Usage
from llm_inference.errors import EngineError, InvalidRequestError, LLMInferenceError, RequestTimeoutError
from llm_inference.gateway import failure, sse
from llm_inference.gateway.admission.turn import Turn
from llm_inference.gateway.bursts import in_bursts
from llm_inference.gateway.record import RequestRecord, record_of
from llm_inference.gateway.state import Gateway

_LOG = logging.getLogger("llm_inference.gateway")

#: Log-probabilities, alternatives included, that one unstreamed answer may hold: some 200 MB while it is made.
MAX_REPLY_LOGPROBS = 1_000_000
#: Of all answers of one reply together, streams apart: no model says as much, whatever its context.
MAX_REPLY_CHARS = 2**26
#: With more than this many the answer is made in a thread.
_THREAD_LOGPROBS = 20_000

#: Seconds that a client has to take the error that ends its stream.
_LAST_WORD_S = 5.0

#: Deltas of several prompts that may wait while a slow client is written to.
_QUEUE_SIZE = 256


class FrameWriter(Protocol):
    """Makes a stream's frames."""

    @property
    def continuous_usage(self) -> bool:
        """Whether `frames` wants the usage so far (cumulative over all prompts of the request)."""
        ...

    def frames(self, prompt_index: int, delta: Delta, usage: Usage | None) -> bytes:
        """Complete SSE frames for `delta`; empty when it says nothing to this client."""
        ...

    def last(self, usage: Usage) -> bytes:
        """What comes between the last choice's end and `[DONE]`; may be empty."""
        ...


class Collector(Protocol):
    """Makes one JSON body of all deltas."""

    def add(self, prompt_index: int, delta: Delta) -> None: ...

    def body(self, usage: Usage) -> bytes: ...


class Run:
    """The engine's work for one HTTP request of one or more prompts."""

    def __init__(self, engine: Engine, requests: Sequence[GenerateRequest], record: RequestRecord) -> None:
        self._engine = engine
        self._requests = requests
        self._record = record
        self._usages: list[Usage | None] = [None] * len(requests)
        self._unfinished = {(place, index) for place, one in enumerate(requests) for index in range(one.sampling.n)}
        self._num_tokens = 0
        #: Seen so far, alternatives included.
        self.num_logprobs = 0

    @property
    def usage(self) -> Usage:
        """The sum over the prompts, as last told; at least the tokens seen, if an engine has told nothing yet."""
        if len(self._usages) == 1:
            only = self._usages[0] or Usage()
            return msgspec.structs.replace(only, completion_tokens=max(only.completion_tokens, self._num_tokens))
        known = [usage for usage in self._usages if usage is not None]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in known),
            completion_tokens=max(sum(usage.completion_tokens for usage in known), self._num_tokens),
            cached_tokens=sum(usage.cached_tokens for usage in known),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in known),
        )

    def source(self) -> AsyncGenerator[Any, None]:
        """What comes of the engine, for `note`. Closing it closes every engine generator. Raises the engine's error."""
        if len(self._requests) == 1:  # the usual case, without a generator between
            return self._engine.generate(self._requests[0])
        return self._merged()

    def note(self, item: Any) -> tuple[int, Delta]:
        """(prompt index, delta) of an item of `source`. Raises `EngineError` where the engine has aborted a choice."""
        place, delta = (0, item) if len(self._requests) == 1 else item
        self._num_tokens += len(delta.token_ids)
        if delta.logprobs:
            self.num_logprobs += sum(1 + len(entry.top) for entry in delta.logprobs)
        if delta.usage is not None:
            self._usages[place] = delta.usage
        self._record.saw(delta)
        if delta.finish_reason is not None:
            if delta.finish_reason in ("abort", "error"):
                raise EngineError("The engine gave this request up before its end; send it again.")
            self._unfinished.discard((place, delta.index))
        return place, delta

    def check_finished(self) -> None:
        """At the end of `source`. Raises `EngineError` where the engine broke its contract: a choice never finished."""
        if self._unfinished:
            raise EngineError("The engine ended its output without finishing every choice; send the request again.")

    async def _merged(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Of several prompts, in the order in which they come."""
        queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(_QUEUE_SIZE)
        pumps = [asyncio.create_task(self._pump(place, queue)) for place in range(len(self._requests))]
        try:
            running = len(pumps)
            while running:
                place, item = await queue.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield place, item
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, place: int, queue: asyncio.Queue[tuple[int, Delta | Exception | None]]) -> None:
        end: Exception | None = None
        try:
            async with aclosing(self._engine.generate(self._requests[place])) as generator:
                async for delta in generator:
                    await queue.put((place, delta))
        except Exception as error:
            end = error
        await queue.put((place, end))


class _GenerationResponse(Response):
    """Runs `requests` (the prompts of one HTTP request) on `engine` when the framework sends it.

    Whatever fails before the first byte is raised; the app's exception handlers make it a plain JSON error.
    """

    def __init__(self, gateway: Gateway, engine: Engine, requests: Sequence[GenerateRequest]) -> None:
        self.background = None
        self._gateway = gateway
        self._engine = engine
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        gateway = self._gateway
        turn = Turn(
            gateway.admission,
            scope,
            receive,
            record,
            self._requests,
            self._engine,
            limit_s=gateway.settings.request_timeout_s,
        )
        async with turn as work:
            record.admitted = time.perf_counter()
            if record.trace is not None:
                context = record.trace.headers()
                work = [msgspec.structs.replace(one, trace_context=context) for one in work]
            tenants = gateway.tenants
            grant = None if tenants is None else tenants.admitted(record, scope, self._engine, work)
            if grant is None:
                await self._run(work, record, turn, send)
                return
            async with grant as requests:
                await self._run(requests, record, turn, send)

    async def _run(
        self, requests: Sequence[GenerateRequest], record: RequestRecord, turn: Turn[GenerateRequest], send: Send
    ) -> None:
        record.headers += turn.headers
        run = Run(self._engine, requests, record)
        try:
            await self._respond(run, turn, record, send)
        except OSError as error:  # how some ASGI servers say that the peer is gone
            raise ClientDisconnect from error
        finally:
            record.usage = run.usage

    async def _respond(self, run: Run, turn: Turn[GenerateRequest], record: RequestRecord, send: Send) -> None:
        raise NotImplementedError


class EventStream(_GenerationResponse):
    """Server-sent events. The status goes out with the first delta."""

    def __init__(
        self, gateway: Gateway, engine: Engine, requests: Sequence[GenerateRequest], writer: FrameWriter
    ) -> None:
        super().__init__(gateway, engine, requests)
        self._writer = writer

    async def _respond(self, run: Run, turn: Turn[GenerateRequest], record: RequestRecord, send: Send) -> None:
        record.stream = True
        writer = self._writer
        counts = writer.continuous_usage
        frames: list[bytes] = []

        def take(item: Any) -> None:
            """Frames are made of each delta as it comes: the usage so far is that of then."""
            place, delta = run.note(item)
            frames.append(writer.frames(place, delta, run.usage if counts else None))

        async def flush() -> None:
            if not record.status:
                await send({"type": "http.response.start", "status": 200, "headers": list(sse.HEADERS)})
            body = b"".join(frames)
            frames.clear()
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})

        source = run.source()
        try:
            try:
                async with turn.interrupt():
                    await in_bursts(source, take, flush)
                    run.check_finished()
                    last = writer.last(run.usage) + sse.DONE
                    await send({"type": "http.response.body", "body": last, "more_body": False})
            finally:
                await source.aclose()
        except ClientDisconnect:
            raise
        except Exception as error:
            if not record.status:
                raise
            # Too late for a status: one error event, and the end without [DONE].
            if not isinstance(error, LLMInferenceError):
                _LOG.exception("unhandled error in the stream of request %s", record.request_id)
            record.failed(error)
            await _last_word(turn, send, sse.frame(failure.encode(error)))


class WholeReply(_GenerationResponse):
    """One JSON body at the end."""

    def __init__(
        self, gateway: Gateway, engine: Engine, requests: Sequence[GenerateRequest], collector: Collector
    ) -> None:
        super().__init__(gateway, engine, requests)
        self._collector = collector

    async def _respond(self, run: Run, turn: Turn[GenerateRequest], record: RequestRecord, send: Send) -> None:
        source = run.source()
        num_chars = 0
        try:
            async with turn.interrupt():
                async for item in source:
                    place, delta = run.note(item)
                    num_chars += len(delta.text) + len(delta.reasoning)
                    for call in delta.tool_calls:
                        num_chars += len(call.arguments)
                    if num_chars > MAX_REPLY_CHARS:
                        raise EngineError(f"The engine goes on after {MAX_REPLY_CHARS} characters; it is broken.")
                    self._collector.add(place, delta)
                    if run.num_logprobs > MAX_REPLY_LOGPROBS:
                        raise InvalidRequestError(
                            f"logprobs: the answer would hold more than {MAX_REPLY_LOGPROBS} log-probabilities; "
                            "stream it, or ask for fewer alternatives, choices or prompts.",
                            param="logprobs",
                        )
                run.check_finished()
        finally:
            await source.aclose()
        if run.num_logprobs > _THREAD_LOGPROBS:
            body = await asyncio.to_thread(self._collector.body, run.usage)
        else:
            body = self._collector.body(run.usage)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _last_word(turn: Turn[GenerateRequest], send: Send, frame: bytes) -> None:
    """The stream's last frame, to a client that may have stopped reading: its place is not held for that."""
    try:
        async with turn.interrupt_after(_LAST_WORD_S):
            await send({"type": "http.response.body", "body": frame, "more_body": False})
    except RequestTimeoutError as error:
        raise ClientDisconnect from error
