"""API keys. Deny by default: with keys set, every path but a few exact ones needs one, routes or not.

The paths are compared as the server decoded them, letter by letter, so another spelling of an open path is not open
and another spelling of a closed one is not either. `/metrics` is open, as it is at peers: scrapers carry no key, and
its labels name served models only; keep it from the outside with the proxy in front, or close it
(`api.open_metrics: false`). What a valid key may then do is asked where the route is known (tenants/access.py).
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from llm_inference.errors import AuthenticationError, LLMInferenceError
from llm_inference.gateway.failure import response_of
from llm_inference.gateway.head import header
from llm_inference.gateway.record import record_of
from llm_inference.gateway.tenants.key import ApiKey, digest_of, plain_key

OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/metrics"})


class Keys(Protocol):
    """Finds the valid key of a secret: `KeyRing`, or `KeyDirectory` where there is a store."""

    async def find(self, secret: str) -> ApiKey | None: ...


class KeyRing:
    """Keys that are in memory. Comparing takes the same time whichever key is near.

    A bare string is a key without limits, of the default scope.
    """

    def __init__(self, keys: Iterable[str | ApiKey]) -> None:
        self._keys = tuple(plain_key(key) if isinstance(key, str) else key for key in keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    async def find(self, secret: str) -> ApiKey | None:
        return self.valid(secret)

    def valid(self, secret: str) -> ApiKey | None:
        given = digest_of(secret)
        # A list, not a generator: no early exit, every stored digest is compared.
        matches = [hmac.compare_digest(given, key.digest) for key in self._keys]
        if not any(matches):
            return None
        key = self._keys[matches.index(True)]
        return key if key.valid_at(time.time()) else None


class AuthMiddleware:
    """Pure ASGI. Answers 401 itself, so nothing behind it sees a request without a valid key."""

    def __init__(self, app: ASGIApp, keys: Keys, open_paths: frozenset[str] = OPEN_PATHS) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        error: LLMInferenceError
        try:
            key = await self._key_of(scope)
            error = AuthenticationError(
                "A valid API key is required: send it as `Authorization: Bearer <key>` (or in `x-api-key`)."
            )
        except LLMInferenceError as unknown:  # nobody can tell now
            key, error = None, unknown
        if key is not None:
            if scope["type"] == "http":
                record_of(scope).key = key
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": error.public_code or ""})
        else:
            record = record_of(scope)
            record.error = error.public_code
            record.metrics.refused(error.public_code or "")
            await response_of(error)(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in self._open_paths

    async def _key_of(self, scope: Scope) -> ApiKey | None:
        scheme, _, token = header(scope, b"authorization").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            key = await self._keys.find(token.strip())
            if key is not None:
                return key
        other = header(scope, b"x-api-key")
        return await self._keys.find(other) if other else None
