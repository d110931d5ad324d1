"""The HTTP side: the few calls that a benchmark makes of an OpenAI-compatible server, over one aiohttp session.

A stream's bytes are given to `StreamReading` with the time at which they were read; nothing is computed in between.
Sends every request once: a retry would hide a failure and lengthen a latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from llm_inference.tools.bench.reading import StreamReading, error_message
from llm_inference.tools.bench.settings import BenchSettings
from llm_inference.tools.bench.timeline import Timeline

_SETUP_TIMEOUT_S = 30.0


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[ModelCard]


class _TokenCount(msgspec.Struct):
    count: int


class _Version(msgspec.Struct):
    version: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One generation request, encoded before its time comes."""

    body: bytes
    index: int = 0
    planned_input_tokens: int | None = None
    max_tokens: int | None = None


class Api:
    """See `open_api`. `epoch` on the clock is second zero of all timelines; `restart_clock` moves it to now."""

    def __init__(self, session: aiohttp.ClientSession, settings: BenchSettings, clock: Callable[[], float]) -> None:
        self._session = session
        self._settings = settings
        self._clock = clock
        self._epoch = clock()
        path = "/chat/completions" if settings.endpoint == "chat" else "/completions"
        self._generate_url = settings.api_url + path
        self._timeout = aiohttp.ClientTimeout(total=settings.timeout_s, sock_connect=_SETUP_TIMEOUT_S)

    def now_s(self) -> float:
        return self._clock() - self._epoch

    def restart_clock(self) -> None:
        self._epoch = self._clock()

    async def models(self) -> list[ModelCard]:
        """Raises `aiohttp.ClientError`, `asyncio.TimeoutError`, `msgspec.MsgspecError` for another kind of answer."""
        url = f"{self._settings.api_url}/models"
        async with self._session.get(url, timeout=aiohttp.ClientTimeout(_SETUP_TIMEOUT_S)) as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read(), type=_ModelList).data

    async def version(self) -> str | None:
        """What the server says of its version, or None: OpenAI's API has no such route."""
        try:
            url = f"{self._settings.root_url}/version"
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(_SETUP_TIMEOUT_S)) as response:
                if response.status != 200:
                    return None
                return msgspec.json.decode(await response.read(), type=_Version).version
        except (aiohttp.ClientError, asyncio.TimeoutError, msgspec.MsgspecError):
            return None

    async def count_tokens(self, body: dict[str, Any]) -> int | None:
        """Tokens of a prompt or of messages as `/tokenize` counts them; None where it does not."""
        url = f"{self._settings.root_url}/tokenize"
        try:
            async with self._session.post(
                url, data=msgspec.json.encode(body), timeout=aiohttp.ClientTimeout(_SETUP_TIMEOUT_S)
            ) as response:
                if response.status != 200:
                    return None
                count = msgspec.json.decode(await response.read(), type=_TokenCount).count
        except (aiohttp.ClientError, asyncio.TimeoutError, msgspec.MsgspecError):
            return None
        return count if count > 0 else None

    async def stream(
        self, call: Call, scheduled_s: float | None = None, reading: StreamReading | None = None
    ) -> Timeline:
        """Send `call` now and read its stream to the end. Whatever goes wrong is in the timeline's `failure`.

        `reading` takes what comes, for whoever wants to look at it while it comes, or after a cancellation.
        """
        reading = StreamReading() if reading is None else reading
        sent_s = self.now_s()
        try:
            await self._read(call, reading)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            reading.fail("connection", str(error))
        except asyncio.TimeoutError:
            reading.fail("timeout", f"not finished within {self._settings.timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            reading.fail("disconnected", f"{type(error).__name__}: {error}")
        return reading.end(
            index=call.index,
            scheduled_s=sent_s if scheduled_s is None else scheduled_s,
            sent_s=sent_s,
            ended_s=self.now_s(),
            planned_input_tokens=call.planned_input_tokens,
            max_tokens=call.max_tokens,
        )

    async def _read(self, call: Call, reading: StreamReading) -> None:
        async with self._session.post(
            self._generate_url, data=call.body, timeout=self._timeout, allow_redirects=False
        ) as response:
            if response.status != 200:
                reading.fail(f"http_{response.status}", _said(await response.read()), response.status)
                return
            if response.content_type == "application/json":
                reading.fail("not_streamed", _said(await response.read()), response.status)
                return
            while data := await response.content.readany():
                reading.feed(data, self.now_s())


@asynccontextmanager
async def open_api(
    settings: BenchSettings, clock: Callable[[], float] = time.perf_counter, *, keep_alive: bool = True
) -> AsyncIterator[Api]:
    """A session without a limit on connections (the load decides), TCP_NODELAY on (aiohttp's default).

    `keep_alive`: connections are used again. Some servers close one that has been idle for seconds at the very moment
    it is used again; without it every request has a connection of its own.
    """
    headers = {"content-type": "application/json", "accept": "text/event-stream, application/json"}
    if settings.api_key:
        headers["authorization"] = f"Bearer {settings.api_key}"
    connector = aiohttp.TCPConnector(limit=0, **({"keepalive_timeout": 75} if keep_alive else {"force_close": True}))
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Api(session, settings, clock)


def _said(body: bytes) -> str:
    try:
        return error_message(msgspec.json.decode(body))
    except msgspec.MsgspecError:
        return body[:1000].decode("utf-8", "replace") or "(an empty body)"
