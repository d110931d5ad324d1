"""What the gateway knows of reloading its configuration: that somebody can do it, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec


class ReloadReport(msgspec.Struct, frozen=True):
    """Replicas by id. `needs_restart`: sections of the file that differ and were left as they are."""

    started: list[str]
    stopped: list[str]
    kept: list[str]
    needs_restart: list[str]


#: Raises `StartupError` for a configuration that cannot be had; the old one then goes on.
Reload = Callable[[], Awaitable[ReloadReport]]
