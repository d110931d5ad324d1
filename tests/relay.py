"""A relay between a client and a server, whose connections a test can break as a dying machine does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Relay:
    """`url` answers with what the server says."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    def cut(self) -> int:
        """Reset every connection there is; their number."""
        num_open = len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        return num_open

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{self._server.path}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            while self._writers:
                await asyncio.sleep(0.01)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._server.hostname is not None
        far_reader, far_writer = await asyncio.open_connection(self._server.hostname, self._server.port)
        both = [writer, far_writer]
        self._writers += both
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            for one in both:
                one.close()
                self._writers.remove(one)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def relayed(url: str) -> AsyncIterator[Relay]:
    async with Relay(url).listening() as relay:
        yield relay
