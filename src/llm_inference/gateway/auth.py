"""API keys. Deny by default: with keys set, every path but a few exact ones needs one, routes or not.

The paths are compared as the server decoded them, letter by letter, so another spelling of an open path is not open
and another spelling of a closed one is not either. `/metrics` is open, as it is at peers: scrapers carry no key, and
its labels name served models only; keep it from the outside with the proxy in front.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from llm_inference.errors import AuthenticationError
from llm_inference.gateway.failure import response_of
from llm_inference.gateway.record import record_of

OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/metrics"})


class KeyRing:
    """Digests of the valid keys. Comparing takes the same time whichever key is near."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, key: str) -> bool:
        given = _digest(key)
        # A list, not a generator: no early exit, every stored digest is compared.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches)


class AuthMiddleware:
    """Pure ASGI. Answers 401 itself, so nothing behind it sees a request without a valid key."""

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope) or self._has_key(Headers(scope=scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "invalid_api_key"})
        else:
            error = AuthenticationError(
                "A valid API key is required: send it as `Authorization: Bearer <key>` (or in `x-api-key`)."
            )
            record = record_of(scope)
            record.error = error.public_code
            await response_of(error)(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PATHS

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip() and self._keys.accepts(token.strip()):
            return True
        other = headers.get("x-api-key", "")
        return bool(other) and self._keys.accepts(other)


def _digest(key: str) -> bytes:
    # Header values arrive as latin-1; both sides go through the same encoding, and none can fail.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
