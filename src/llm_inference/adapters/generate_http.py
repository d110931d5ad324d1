"""The HTTP side of engines with a protocol of their own: post a body, get its JSON values, in our errors.

    an HTTP status of 300 or more     as `upstream_errors` has it; 424 is a failure of the engine, 502 is nobody there
    an error object after a 200       the same, by its type; an EngineError where it has none
    refused, unreachable              NotReadyError
    broken off, no JSON               EngineError

Closing the generator of `post` closes the connection, which is how these engines are told to abort. Knows no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp

from llm_inference.adapters.frames import FrameReader, Framing, decode
from llm_inference.adapters.http_client import MAX_WHOLE_BYTES
from llm_inference.adapters.upstream import without_user
from llm_inference.adapters.upstream_errors import from_event, from_refusal, from_response, read_refusal
from llm_inference.errors import ContextLengthError, EngineError, NotReadyError

#: Shorter than the five seconds after which common servers close idle connections: a request on a connection that is
#: just being closed fails, and a POST must not be sent twice.
_KEEP_ALIVE_S = 2.0
_CONNECT_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 5.0
_MAX_ERROR_BYTES = 64 * 1024
#: How one of these engines says that generating failed.
_STATUSES = {424: 500}


class HttpBackend:
    """One server at `url`. `open` before the first call, `close` after the last."""

    def __init__(self, engine: str, url: str, api_key: str | None = None) -> None:
        self.engine = engine
        self._address = url.rstrip("/")
        self.url = without_user(self._address)  # as messages may show it
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key is not None else {}
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            headers=self._headers,
            auto_decompress=True,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str) -> tuple[int, bytes]:
        """(status, body) of a probe. Raises `NotReadyError` when nobody answers within seconds."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        try:
            async with self._require_session().get(
                self._address + path, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await self._whole(response)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    async def post(self, path: str, body: Mapping[str, Any], framing: Framing) -> AsyncGenerator[Any, None]:
        """The JSON values of the answer as they arrive. An object that is nothing but an error is raised."""
        response = await self._send(path, body)
        try:
            if framing == "json" or not _is_stream(response, framing):
                yield self._checked(decode(await self._whole(response)), first=True)
                return
            reader = FrameReader(framing)
            first = True
            async for chunk in response.content.iter_any():
                for value in reader.feed(chunk):
                    yield self._checked(value, first=first)
                    first = False
                if reader.done:
                    return
            for value in reader.finish():
                yield self._checked(value, first=first)
                first = False
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"{self._where} broke off its answer ({_short(error)})", detail=self._at) from error
        finally:
            # What was not read to its end is not wanted any more: the connection goes, and the work with it.
            response.close()

    async def _send(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        try:
            # A redirect would carry prompt and key to wherever the server says.
            response = await self._require_session().post(self._address + path, json=body, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError):
                raise self._unreachable(error) from error
            raise EngineError(f"{self._where} closed the connection ({_short(error)})", detail=self._at) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status < 300:
            return response
        try:
            raw = await response.content.read(_MAX_ERROR_BYTES)
        except (aiohttp.ClientError, OSError):
            raw = b""
        finally:
            response.close()
        status = _STATUSES.get(response.status, response.status)
        refused = from_response(status, response.headers, raw, where=self._where)
        if status == 502:
            raise NotReadyError(refused.message, retry_after_s=5.0, detail=f"{self.url} answered {status}")
        refused.detail = f"{self.url} answered {status}"
        raise refused

    @staticmethod
    async def _whole(response: aiohttp.ClientResponse) -> bytes:
        pieces: list[bytes] = []
        num_bytes = 0
        async for piece in response.content.iter_any():
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > MAX_WHOLE_BYTES:
                raise ConnectionAbortedError(f"its answer is larger than {MAX_WHOLE_BYTES} bytes")
        return b"".join(pieces)

    def _checked(self, value: Any, *, first: bool) -> Any:
        """The value, unless it is an error: those may follow a status of 200, in streams and outside of them."""
        if not (isinstance(value, dict) and value.get("error")):
            return value
        refusal = read_refusal(value)
        if refusal.type is None and refusal.status is None and first:
            # An engine that has not begun and speaks of the length has refused the request.
            refused = from_refusal(400, refusal, where=self._where)
            if isinstance(refused, ContextLengthError):
                raise refused
        raise from_event(value, where=self._where)

    @property
    def _where(self) -> str:
        return f"the engine {self.engine!r}"

    @property
    def _at(self) -> str:
        return f"at {self.url}"

    def _unreachable(self, error: BaseException) -> NotReadyError:
        return NotReadyError(
            f"{self._where} does not answer",
            retry_after_s=5.0,
            detail=f"no engine answers at {self.url} ({_short(error)}); start it, or correct `url`",
        )

    def _require_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise NotReadyError(f"{self.engine}: the engine is not started, or already stopped")
        return self._session


def _is_stream(response: aiohttp.ClientResponse, framing: Framing) -> bool:
    """One JSON object may answer a request for events: an error, or a server that does not stream."""
    return framing == "ndjson" or response.content_type != "application/json"


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200] or type(error).__name__
