"""How long a request may take: what the server allows, and what its client says in `x-request-timeout`."""

from __future__ import annotations

import math

from starlette.types import Scope

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.head import header

HEADER = "x-request-timeout"
_MAX_S = 86_400.0


def deadline_of(scope: Scope, started: float, limit_s: float | None) -> tuple[float | None, str]:
    """(in seconds of the clock of `started`, whose wish it is); None: no limit. Both count from `started`.

    Raises `InvalidRequestError` for a header that is no number of seconds above 0.
    """
    text = header(scope, HEADER.encode())
    ours = None if limit_s is None else started + limit_s
    if not text:
        return ours, "api.request_timeout_s"
    try:
        seconds = float(text) if text.isascii() else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequestError(
            f"{HEADER}: {text[:64]!r} is no time; send seconds above 0, such as 2.5, as a number.", param=HEADER
        )
    theirs = started + min(seconds, _MAX_S)
    return (theirs, HEADER) if ours is None or theirs < ours else (ours, "api.request_timeout_s")
