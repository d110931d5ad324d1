"""The HTTP side: connections to a model's servers, streams read as events, failures as errors of ours.

`stream` retries at most once, on another server, and never after the first event. Closing it closes the connection at
once, which is how the servers learn that the work is not wanted any more. What clients read of a failure names the
engine; its address is for the log (`LLMInferenceError.detail`). Knows nothing of what the events say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from llm_inference.adapters.endpoints import Endpoint, EndpointPool
from llm_inference.adapters.events import DONE, EventReader
from llm_inference.adapters.http_client import Answer, HttpClient, said, whole
from llm_inference.adapters.upstream_errors import from_response
from llm_inference.errors import (
    EngineError,
    LLMInferenceError,
    NotReadyError,
    RequestError,
    RequestTimeoutError,
)

if TYPE_CHECKING:
    from llm_inference.adapters.web_client import WebClient

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S = 0.05
#: What says that it is over is short, whatever white space some servers put around it.
_MAX_DONE_BYTES = 16


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
        self._bases: dict[str, str] = {}
        self._name = name
        self._who = f"the engine {name!r}"
        self._prefix = api_prefix
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",
            "user-agent": "llm-inference",
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._client: HttpClient | None = None
        self._web_client: WebClient | None = None  # made for the first URL that needs it

    async def open(self) -> None:
        if self._client is None:
            self._client = HttpClient(self._headers)

    async def close(self) -> None:
        client, self._client = self._client, None
        web_client, self._web_client = self._web_client, None
        if client is not None:
            await client.close()
        if web_client is not None:
            await web_client.close()

    def where(self, endpoint: Endpoint) -> str:
        """For operators alone; clients are told `self._who`."""
        return f"the engine {self._name!r} at {without_user(endpoint.url)}"

    def api_url(self, endpoint: Endpoint, path: str) -> str:
        """A URL with a path of its own is the API's base; one without gets the usual prefix."""
        url = endpoint.url
        base = self._bases.get(url)
        if base is None:
            base = self._bases[url] = url if urlsplit(url).path.strip("/") else url + self._prefix
        return base + path

    def root_url(self, endpoint: Endpoint, path: str) -> str:
        """Of routes that stand beside the API, not under its prefix."""
        return endpoint.url.removesuffix(self._prefix) + path

    async def ask(self, url: str, *, body: Any = None, timeout_s: float = PROBE_TIMEOUT_S) -> Reply:
        """One small exchange: GET, or POST where there is a body. Raises `NotReadyError` when nobody answers."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            status, raw = await asyncio.wait_for(self._whole(url, data), timeout_s)
        except (OSError, asyncio.TimeoutError) as error:
            detail = f"{without_user(url)} does not answer: {said(error)}"
            raise NotReadyError(f"{self._who} does not answer", retry_after_s=2.0, detail=detail) from error
        try:
            return Reply(status, msgspec.json.decode(raw))
        except (msgspec.MsgspecError, RecursionError):
            return Reply(status, raw.decode("utf-8", "replace"))

    async def call(self, path: str, body: Any, *, timeout_s: float = 60.0) -> Any:
        """POST to a route beside the API; its decoded body. Raises the error that the server reports."""
        endpoint = self.pool.pick()
        reply = await self.ask(self.root_url(endpoint, path), body=body, timeout_s=timeout_s)
        if reply.status != 200:
            raise self._refused(endpoint, reply.status, {}, msgspec.json.encode(reply.body))
        return reply.body

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        request_id: str,
        keep_alive: bool = True,
        context: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """The data of the events of one answer, those that came together in one list, up to [DONE] (which is not among
        them) or the end of the connection.

        `keep_alive=False`: on a connection that serves no other request after it.
        Raises `RequestError` for what the server refuses, `ServiceError` for everything else.
        """
        data = msgspec.json.encode(body)
        headers = {"x-request-id": request_id, **(context or {})}
        pool = self.pool
        endpoint, is_second = pool.pick(), False
        while True:
            begun = False
            try:
                with pool.use(endpoint):
                    answer = await self._begin(endpoint, path, data, headers, keep_alive)
                    reading = _Reading(answer)
                    try:
                        while events := await reading.events():
                            begun = True
                            yield events
                    except OSError as error:
                        raise self._broken(endpoint, error) from error
                    except EngineError as error:
                        self._failed(endpoint, error.message)
                        raise
                    finally:
                        answer.close()
                    pool.succeeded(endpoint)
                    return
            except RequestError:
                raise
            except LLMInferenceError as error:
                if begun or is_second or len(pool) == 1 or isinstance(error, RequestTimeoutError):
                    raise
            endpoint, is_second = pool.pick(without=endpoint), True

    async def _begin(
        self, endpoint: Endpoint, path: str, data: bytes, headers: Mapping[str, str], keep_alive: bool
    ) -> Answer:
        """An answer of status 200, for the caller to close. The pool has been told of what is raised here."""
        url = self.api_url(endpoint, path)
        try:
            answer = await self._client_of(url).send(url, data, headers, keep=keep_alive)
        except ConnectionRefusedError as error:
            detail = f"{without_user(endpoint.url)}: {said(error)}"
            self._failed(endpoint, said(error), unreachable=True)
            raise NotReadyError(f"{self._who} cannot be reached", retry_after_s=2.0, detail=detail) from error
        except OSError as error:
            raise self._broken(endpoint, error) from error
        if answer.status == 200:
            return answer
        try:
            raw = await whole(answer)
        except OSError as error:
            raise self._broken(endpoint, error) from error
        finally:
            answer.close()
        refused = self._refused(endpoint, answer.status, answer.headers, raw)
        # A server that is full or refuses a request is in good health.
        if isinstance(refused, (EngineError, NotReadyError)):
            self._failed(endpoint, refused.message)
        else:
            self.pool.succeeded(endpoint)
        raise refused

    def _broken(self, endpoint: Endpoint, error: OSError) -> EngineError:
        self._failed(endpoint, said(error))
        message = f"{self._who} broke the connection while it answered: {said(error)}"
        return EngineError(message, detail=f"at {without_user(endpoint.url)}")

    def _refused(self, endpoint: Endpoint, status: int, headers: Mapping[str, str], raw: bytes) -> LLMInferenceError:
        error = from_response(status, headers, raw, where=self._who)
        error.detail = f"{without_user(endpoint.url)} answered {status}"
        return error

    def _failed(self, endpoint: Endpoint, why: str, *, unreachable: bool = False) -> None:
        wait_s = self.pool.failed(endpoint, unreachable=unreachable)
        if wait_s and len(self.pool) > 1:
            logger.warning("%s is left alone for %.0f s: %s", self.where(endpoint), wait_s, why)

    async def _whole(self, url: str, data: bytes | None) -> tuple[int, bytes]:
        answer = await self._client_of(url).send(url, data)
        try:
            return answer.status, await whole(answer)
        finally:
            answer.close()

    def _client_of(self, url: str) -> HttpClient | WebClient:
        """Raises `NotReadyError` before `open` and after `close`."""
        if self._client is None:
            raise NotReadyError(f"the engine {self._name!r} is not started", retry_after_s=2.0)
        if self._client.speaks(url):
            return self._client
        if self._web_client is None:
            from llm_inference.adapters.web_client import WebClient  # see there

            self._web_client = WebClient(self._headers)
        return self._web_client


class _Reading:
    """An answer's events: those of a stream, or the whole answer as one where it did not stream."""

    __slots__ = ("_answer", "_ended", "_reader")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._reader = None if answer.content_type == "application/json" else EventReader()
        self._ended = False

    async def events(self) -> list[bytes]:
        """Those that are there, as soon as the last byte of one is; [] at [DONE] or the end."""
        answer, reader = self._answer, self._reader
        if self._ended:
            return []
        if reader is None:
            self._ended = True
            return [await whole(answer)]
        while chunk := await answer.read():
            events = reader.feed(chunk)
            place = _place_of_done(events)
            if place is not None:
                # The end of the body is there or follows at once; reading it keeps the connection for the next request.
                await answer.end(DRAIN_TIMEOUT_S)
                self._ended = True
                return events[:place]
            if events:
                return events
        self._ended = True
        return [event for event in reader.end() if event.strip() != DONE]


def _place_of_done(events: list[bytes]) -> int | None:
    for place, event in enumerate(events):
        if len(event) <= _MAX_DONE_BYTES and event.strip() == DONE:
            return place
    return None
