"""How an engine with a protocol of its own is reached: two doors, whatever carries them (HTTP, or gRPC)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from llm_inference.adapters.frames import Framing


class Backend(Protocol):
    """One server. `open` before the first call, `close` after the last."""

    engine: str
    url: str

    async def open(self) -> None:
        """Raises `ConfigError` where what it needs is not installed."""

    async def close(self) -> None: ...

    async def get(self, path: str) -> tuple[int, bytes]:
        """(status, body) of a probe. Raises `NotReadyError` when nobody answers within seconds."""
        ...

    def post(self, path: str, body: Mapping[str, Any], framing: Framing) -> AsyncGenerator[Any, None]:
        """The JSON values of the answer as they arrive. Closing it ends the work. Raises the errors that come."""
        ...
