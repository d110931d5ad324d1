"""The same as `adapters/http_client.py` for servers farther away, by aiohttp: https, and URLs that hold a user.

Imported where such a URL is met and nowhere else: it takes time and memory that the others need not spend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import aiohttp

from llm_inference.adapters.http_client import CONNECT_TIMEOUT_S, KEEP_ALIVE_S, Answer, said


class WebClient:
    """One session, no limit on connections: admission bounds them."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            headers=headers,
        )

    async def send(
        self, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, *, keep: bool = True
    ) -> Answer:
        """See `HttpClient.send`."""
        more = {**(headers or {}), **({} if keep else {"connection": "close"})}
        method = "GET" if body is None else "POST"
        try:
            response = await self._session.request(method, url, data=body, headers=more, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ConnectionRefusedError(said(error)) from error
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise ConnectionResetError(said(error)) from error
        return _WebAnswer(response)

    async def close(self) -> None:
        await self._session.close()


class _WebAnswer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    @property
    def content_type(self) -> str:
        return self._response.content_type if "content-type" in self._response.headers else ""

    @property
    def headers(self) -> Mapping[str, str]:
        return {name.lower(): value for name, value in self._response.headers.items()}

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise ConnectionResetError(said(error)) from error

    async def end(self, within_s: float) -> None:
        if not self._response.content.at_eof():
            with suppress(asyncio.TimeoutError, aiohttp.ClientError):
                await asyncio.wait_for(self._response.content.read(), within_s)

    def close(self) -> None:
        self._response.close()  # one that was read to its end has given its connection back already
