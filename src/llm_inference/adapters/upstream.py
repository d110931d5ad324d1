"""The HTTP side: one aiohttp session to a model's servers, streams read as events, failures as errors of ours.

`stream` retries at most once, on another server, and never after the first event. Closing it closes the connection at
once, which is how the servers learn that the work is not wanted any more. Knows nothing of what the events say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from llm_inference.adapters.endpoints import Endpoint, EndpointPool
from llm_inference.adapters.events import DONE, EventReader
from llm_inference.adapters.upstream_errors import from_response
from llm_inference.errors import (
    EngineError,
    LLMInferenceError,
    NotReadyError,
    RequestError,
    RequestTimeoutError,
)

CONNECT_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S = 0.05
_STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)


class Reply(msgspec.Struct, frozen=True):
    """A small reply, read whole. `body` is decoded JSON, or text."""

    status: int
    body: Any


def without_user(url: str) -> str:
    """`url` as errors may show it: without user and password."""
    scheme, found, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{found}{authority.rpartition('@')[2]}{slash}{path}"


class Upstream:
    """`urls`: with or without the API's prefix. `name` is the engine's, for messages."""

    def __init__(self, urls: Sequence[str], *, name: str, api_prefix: str = "/v1", api_key: str | None = None) -> None:
        self.pool = EndpointPool([url.rstrip("/") for url in urls])
        self._name = name
        self._prefix = api_prefix
        self._headers = {"content-type": "application/json", "accept": "text/event-stream, application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """No limit on connections: admission bounds them. TCP_NODELAY is aiohttp's default."""
        if self._session is None:
            # Below the 5 s after which uvicorn, and so most of these servers, closes an idle connection: a request
            # that is sent just then would be lost.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, auto_decompress=True)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def where(self, endpoint: Endpoint) -> str:
        return f"the engine {self._name!r} at {without_user(endpoint.url)}"

    def api_url(self, endpoint: Endpoint, path: str) -> str:
        """A URL with a path of its own is the API's base; one without gets the usual prefix."""
        base = endpoint.url if urlsplit(endpoint.url).path.strip("/") else endpoint.url + self._prefix
        return base + path

    def root_url(self, endpoint: Endpoint, path: str) -> str:
        """Of routes that stand beside the API, not under its prefix."""
        return endpoint.url.removesuffix(self._prefix) + path

    async def ask(self, url: str, *, body: Any = None, timeout_s: float = PROBE_TIMEOUT_S) -> Reply:
        """One small exchange: GET, or POST where there is a body. Raises `NotReadyError` when nobody answers."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._require_session().request(
                "GET" if body is None else "POST", url, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise NotReadyError(f"{without_user(url)} does not answer: {_said(error)}", retry_after_s=2.0) from error
        try:
            return Reply(response.status, msgspec.json.decode(raw))
        except msgspec.MsgspecError:
            return Reply(response.status, raw.decode("utf-8", "replace"))

    async def call(self, path: str, body: Any, *, timeout_s: float = 60.0) -> Any:
        """POST to a route beside the API; its decoded body. Raises the error that the server reports."""
        endpoint = self.pool.pick()
        reply = await self.ask(self.root_url(endpoint, path), body=body, timeout_s=timeout_s)
        if reply.status != 200:
            raise from_response(reply.status, {}, msgspec.json.encode(reply.body), where=self.where(endpoint))
        return reply.body

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        keep_alive: bool = True,
        context: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The data of the events of one answer, up to [DONE] (which is not among them) or the end of the connection.

        `keep_alive=False`: on a connection that serves no other request after it.
        Raises `RequestError` for what the server refuses, `ServiceError` for everything else.
        """
        data = msgspec.json.encode(body)
        headers = {"x-request-id": request_id, **({} if keep_alive else {"connection": "close"}), **(context or {})}
        first = self.pool.pick()
        begun = False
        try:
            async with aclosing(self._stream(first, path, data, headers)) as events:
                async for event in events:
                    begun = True
                    yield event
            return
        except RequestError:
            raise
        except LLMInferenceError as error:
            if begun or len(self.pool) == 1 or isinstance(error, RequestTimeoutError):
                raise
        second = self.pool.pick(without=first)
        async with aclosing(self._stream(second, path, data, headers)) as events:
            async for event in events:
                yield event

    async def _stream(
        self, endpoint: Endpoint, path: str, data: bytes, headers: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        pool, where = self.pool, self.where(endpoint)
        with pool.use(endpoint):
            response: aiohttp.ClientResponse | None = None
            try:
                response = await self._require_session().post(
                    self.api_url(endpoint, path),
                    data=data,
                    headers=headers,
                    timeout=_STREAM_TIMEOUT,
                    allow_redirects=False,
                )
                if response.status != 200:
                    error = from_response(response.status, response.headers, await response.read(), where=where)
                    self._judge(endpoint, error)
                    raise error
                if response.content_type == "application/json":  # it did not stream: the whole answer at once
                    yield await response.read()
                else:
                    async with aclosing(_events(response)) as events:
                        async for event in events:
                            yield event
                pool.succeeded(endpoint)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                pool.failed(endpoint, unreachable=True)
                raise NotReadyError(f"{where} cannot be reached: {_said(error)}", retry_after_s=2.0) from error
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                pool.failed(endpoint, unreachable=False)
                raise EngineError(f"{where} broke the connection while it answered: {_said(error)}") from error
            finally:
                if response is not None:
                    response.close()  # an answer that was read to its end has given its connection back already

    def _judge(self, endpoint: Endpoint, error: LLMInferenceError) -> None:
        """A server that is full or refuses a request is in good health."""
        if isinstance(error, (EngineError, NotReadyError)):
            self.pool.failed(endpoint, unreachable=False)
        else:
            self.pool.succeeded(endpoint)

    def _require_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise NotReadyError(f"the engine {self._name!r} is not started", retry_after_s=2.0)
        return self._session


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Each event as soon as its last byte is there, up to [DONE] or the end."""
    reader = EventReader()
    while chunk := await response.content.readany():
        for event in reader.feed(chunk):
            if event.strip() == DONE:
                # The end of the body is there or follows at once; reading it keeps the connection for the next request.
                if not response.content.at_eof():
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(response.content.read(), DRAIN_TIMEOUT_S)
                return
            yield event
    for event in reader.end():
        if event.strip() != DONE:
            yield event


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
