"""A server that speaks OpenAI's completions, over HTTP: requests as the suite has them, answers as timelines.

Prompts are token ids where the server takes them, else the same text. Sends, reads and counts with the parts of
`bench serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from llm_inference.errors import ConfigError, EngineError
from llm_inference.text.tokenizer import Tokenizer
from llm_inference.tools.bench.api import Api, Call, open_api
from llm_inference.tools.bench.dialect import Dialect, learn
from llm_inference.tools.bench.load import closed_loop
from llm_inference.tools.bench.reading import StreamReading
from llm_inference.tools.bench.settings import BenchSettings
from llm_inference.tools.bench.timeline import Timeline
from llm_inference.tools.compare.measured import CUT, Outcome
from llm_inference.tools.compare.workloads import Request, Workload

#: Tokens of each stream before late prompts come.
STREAM_START = 8
_POLL_S = 0.02
_SETTLE_S = 3.0
_WARMUP_CONCURRENCY = 2

#: Brings a request's body into words that a server knows; told the number of tokens that are wanted.
Rewrite = Callable[[dict[str, Any], int], dict[str, Any]]


class HttpTarget:
    """See `open_http`."""

    def __init__(
        self, api: Api, model: str, dialect: Dialect, rewrite: Rewrite, tokenizer: Tokenizer | None, *, takes_ids: bool
    ) -> None:
        self._api = api
        self._model = model
        self._dialect = dialect
        self._rewrite = rewrite
        self._tokenizer = tokenizer
        self._takes_ids = takes_ids
        self._running: dict[int, tuple[Call, StreamReading, float]] = {}
        self._texts: list[str] = []

    async def warm_up(self, requests: Sequence[Request]) -> None:
        calls = [self._call(one, index) for index, one in enumerate(requests)]
        timelines = await closed_loop(self._send, calls, _WARMUP_CONCURRENCY, self._api.now_s)
        failed = [one.failure for one in timelines if one.failure is not None]
        if failed:
            raise EngineError(f"warming up fails: {failed[0].kind}: {failed[0].detail}")

    async def run(self, workload: Workload, limit_s: float) -> Outcome:
        self._texts = []
        self._running = {}
        calls = [self._call(one, index) for index, one in enumerate(workload.requests)]
        self._api.restart_clock()
        if workload.late:
            return await self._beside(calls, workload, limit_s)
        timelines: list[Timeline] = []
        loop = closed_loop(self._send, calls, workload.concurrency, self._api.now_s, on_done=timelines.append)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(loop, limit_s)
        ended_s = self._api.now_s()
        timelines += [self._cut(one, ended_s) for one in self._running.values()]
        await self._settle()
        return Outcome(timelines=tuple(timelines), text_tokens=self._count_texts(), limit_s=limit_s)

    async def _beside(self, calls: list[Call], workload: Workload, limit_s: float) -> Outcome:
        """Streams, and once all of them answer, the late prompts one after the other. Ends with the last of those."""
        done: list[Timeline] = []

        async def stream(call: Call) -> None:
            done.append(await self._send(call, None))

        late: list[Timeline] = []

        async def prompts() -> None:
            while any(reading.num_tokens < STREAM_START for _, reading, _ in self._running.values()):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            for number, request in enumerate(workload.late):
                late.append(await self._send(self._call(request, len(calls) + number), None))

        streams = [asyncio.create_task(stream(call)) for call in calls]
        await asyncio.sleep(0)  # let all of them be under way
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(prompts(), limit_s)
        finally:
            ended_s = self._api.now_s()
            for task in streams:
                task.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        cut = [self._cut(one, ended_s) for one in self._running.values()]
        await self._settle()
        late += [one for one in cut if one.index >= len(calls)]
        if not late:
            reason = done[0].failure.detail if done and done[0].failure is not None else "the streams did not start"
            raise EngineError(f"no long prompt was sent within {limit_s:g} s: {reason}")
        done += [one for one in cut if one.index < len(calls)]
        return Outcome(timelines=tuple(done), late=tuple(late), limit_s=limit_s)

    async def _send(self, call: Call, scheduled_s: float | None) -> Timeline:
        reading = StreamReading(keep_text=True)
        self._running[call.index] = (call, reading, self._api.now_s())
        timeline = await self._api.stream(call, scheduled_s, reading)
        del self._running[call.index]
        if timeline.ok:
            self._texts.append(reading.text)
        return timeline

    async def _settle(self) -> None:
        """A server may notice only at its next token, or after the prompt that it computes, that its client has left;
        the next workload shall not pay for that.
        """
        if self._running:
            await asyncio.sleep(_SETTLE_S)

    @staticmethod
    def _cut(running: tuple[Call, StreamReading, float], ended_s: float) -> Timeline:
        call, reading, sent_s = running
        reading.fail(CUT, "the time was over")
        return reading.end(
            index=call.index,
            scheduled_s=sent_s,
            sent_s=sent_s,
            ended_s=ended_s,
            planned_input_tokens=call.planned_input_tokens,
            max_tokens=call.max_tokens,
        )

    def _call(self, request: Request, index: int) -> Call:
        prompt: Any = list(request.token_ids) if self._takes_ids and request.token_ids is not None else request.text
        body = self._dialect.body(self._model, "completions", prompt, request.max_tokens)
        return Call(
            body=msgspec.json.encode(self._rewrite(body, request.max_tokens)),
            index=index,
            planned_input_tokens=request.num_tokens,
            max_tokens=request.max_tokens,
        )

    def _count_texts(self) -> int | None:
        if self._tokenizer is None:
            return None
        return sum(len(self._tokenizer.encode(text, add_special_tokens=False)) for text in self._texts if text)


@asynccontextmanager
async def open_http(
    url: str,
    *,
    model: str | None,
    tokenizer: Tokenizer | None,
    api_key: str | None = None,
    rewrite: Rewrite | None = None,
    timeout_s: float = 900.0,
) -> AsyncIterator[tuple[HttpTarget, str | None, list[str]]]:
    """(a target, the server's version, notes on what it refuses). Raises `ConfigError` and `EngineError`."""
    settings = BenchSettings(url=url, model=model, api_key=api_key, endpoint="completions", timeout_s=timeout_s)
    change = rewrite if rewrite is not None else _unchanged
    async with open_api(settings, keep_alive=False) as api:
        name = model or await _first_model(api, url)

        async def hello(dialect: Dialect, prompt: Any = "Hello") -> Timeline:
            body = change(dialect.body(name, "completions", prompt, 1), 1)
            return await api.stream(Call(body=msgspec.json.encode(body)))

        dialect, notes = await learn(hello, Dialect())
        takes_ids = tokenizer is not None and (await hello(dialect, tokenizer.encode("Hello"))).ok
        if not takes_ids:
            notes.append("prompts are sent as text")
        target = HttpTarget(api, name, dialect, change, tokenizer, takes_ids=takes_ids)
        yield target, await api.version(), notes


def _unchanged(body: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    return body


async def _first_model(api: Api, url: str) -> str:
    try:
        cards = await api.models()
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{url} lists no models ({error}); say which with model=NAME, or check the address"
        ) from error
    if not cards:
        raise ConfigError(f"{url} lists no model; say which with model=NAME")
    return cards[0].id
