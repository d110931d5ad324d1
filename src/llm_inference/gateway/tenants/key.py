"""An API key: who it is, what it may do, until when. The secret itself is nowhere but at its owner's."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from llm_inference.gateway.tenants.limits import NO_LIMITS, Limits

#: What a route is for. A key has those of its list; the admin's are never given by default.
RouteGroup = Literal["inference", "tokenize", "models", "metrics", "admin"]
ROUTE_GROUPS: tuple[RouteGroup, ...] = get_args(RouteGroup)
DEFAULT_ROUTES: tuple[RouteGroup, ...] = ("inference", "tokenize", "models")

SECRET_PREFIX = "sk-"  # noqa: S105 - a prefix, no secret
_SECRET_BYTES = 32
_SECRET_CHARS = len(SECRET_PREFIX) + 43  # 32 bytes as URL-safe base64 without padding


@dataclass(frozen=True, slots=True)
class Scope:
    """What a key may do. `models` and `tiers` are globs over names; `priority` is the range that requests may say."""

    models: tuple[str, ...] = ("*",)
    routes: tuple[RouteGroup, ...] = DEFAULT_ROUTES
    tiers: tuple[str, ...] = ("*",)
    priority: tuple[int, int] | None = None  # lower runs first, both ends included; None: any

    @property
    def all_models(self) -> bool:
        return "*" in self.models

    def may_use_model(self, name: str) -> bool:
        """Whether the served model `name` (never an alias) may be used, and seen."""
        return any(fnmatchcase(name, glob) for glob in self.models)

    def may_use_tier(self, name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in self.tiers)

    def clamp(self, priority: int) -> int:
        """The nearest priority that this key may have."""
        return priority if self.priority is None else min(max(priority, self.priority[0]), self.priority[1])


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`id` is public: it stands in logs and in the ledger. Times are Unix seconds."""

    id: str
    name: str
    digest: bytes  # of the secret, see `digest_of`
    created: float | None = None
    expires: float | None = None
    revoked: float | None = None
    scope: Scope = Scope()
    limits: Limits = NO_LIMITS

    def valid_at(self, now: float) -> bool:
        return (self.revoked is None or now < self.revoked) and (self.expires is None or now < self.expires)


def digest_of(secret: str) -> bytes:
    """SHA-256, which is what is stored and compared.

    A slow hash (bcrypt, Argon2) protects what people choose, since few guesses suffice for that. Our secrets are 256
    random bits: nobody finds one by guessing, however fast the hash, and a slow one would cost every request.
    """
    # Header values arrive as latin-1; both sides go through the same encoding, and none can fail.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def new_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def new_id() -> str:
    return "k_" + secrets.token_hex(8)


def could_be_ours(secret: str) -> bool:
    """Whether `new_secret` could have made it. What could not is in no store, and not worth looking for."""
    return len(secret) == _SECRET_CHARS and secret.startswith(SECRET_PREFIX) and secret.isascii()


def plain_key(secret: str) -> ApiKey:
    """The key of a bare string of `api.api_keys`: default scope, no limits, an id that comes from the secret."""
    # Of another digest than the stored one, and short: it tells keys apart and nothing of them.
    identity = hashlib.sha256(b"id:" + secret.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return ApiKey(id=f"k_{identity}", name=f"k_{identity}", digest=digest_of(secret))
