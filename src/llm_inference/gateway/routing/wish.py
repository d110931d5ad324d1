"""What one request says about who should answer it, and where it is noted who did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from llm_inference.engine.base import Engine
from llm_inference.gateway.tenants.key import Scope


class Diary(Protocol):
    """Told who answers, at the latest with the first delta."""

    replica: str
    tier: str


class Wish(msgspec.Struct, frozen=True):
    """None and "" mean that nothing is said."""

    tier: str | None = None  # `service_tier`, in the client's words
    session: str = ""  # requests of one session belong together
    scope: Scope | None = None  # the key's
    diary: Diary | None = None
    #: Whether an engine can do what the request asks for; the first choice is checked by the caller.
    fits: Callable[[Engine], bool] | None = None

    @property
    def plain(self) -> bool:
        """Nothing is said about tiers."""
        return self.tier is None or self.tier in ("auto", "default")
