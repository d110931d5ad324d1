"""The configuration of keys, limits and prices. Part of `schema.py`; what they mean is said in `gateway/tenants/`."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Literal

from pydantic import Field, field_validator, model_validator

from llm_inference.config.section import Section
from llm_inference.config.values import ListOf, Secret, Text

_HASH = re.compile(r"(?:sha256:)?([0-9a-f]{64})")

RouteGroupName = Literal["inference", "tokenize", "models", "metrics", "admin"]
LimitsFail = Literal["local", "open", "closed"]


class LimitsConfig(Section):
    """`limits:` of a key, an address or a model. Tokens are those of prompt and answer; null: not limited."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=10**9)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**10)
    max_concurrent_requests: int | None = Field(default=None, ge=1, le=10**6)
    max_prompt_tokens: int | None = Field(default=None, ge=1, description="Of one prompt; above it: 400.")
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Of one answer: a longer max_tokens is a 400; where none is said, it is this.",
    )
    tokens_per_day: int | None = Field(default=None, ge=1, le=10**15, description="Of a UTC day.")
    tokens_per_month: int | None = Field(default=None, ge=1, le=10**15, description="Of a UTC month.")
    price_per_day: float | None = Field(default=None, gt=0, le=10**6, description="By the models' `price`.")
    price_per_month: float | None = Field(default=None, gt=0, le=10**6)


class PriceConfig(Section):
    """`price:` of a model, for a million tokens, in any currency."""

    input: float = Field(default=0.0, ge=0, le=10**6)
    output: float = Field(default=0.0, ge=0, le=10**6)
    cached: float | None = Field(
        default=None, ge=0, le=10**6, description="Prompt tokens found in the prefix cache; null: as `input`."
    )


class KeyConfig(Section):
    """An entry of `api.keys`."""

    name: str = Field(default="", description="For people; differs from the others'.")
    id: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="In logs and ledger; null: made of the name."
    )
    key: Secret | None = Field(default=None, min_length=1, description="The secret; better `${VAR}` than itself.")
    key_hash: str | None = Field(default=None, description="SHA-256 of the secret in hex, instead of `key`.")
    expires: str | None = Field(default=None, description="ISO date or time (UTC) from which on it is not valid.")
    models: ListOf[Text] = Field(default=("*",), description="Globs of the models that it may use and see.")
    routes: ListOf[RouteGroupName] = Field(
        default=("inference", "tokenize", "models"), description="Groups of routes that it may call."
    )
    tiers: ListOf[Text] = Field(
        default=("*",), description="Globs of the tiers that it may use; the first that fits is its default."
    )
    priority: ListOf[int] | None = Field(
        default=None, description="[lowest, highest]: a request's priority is brought into this range."
    )
    limits: LimitsConfig = LimitsConfig()

    @field_validator("key_hash")
    @classmethod
    def _is_hash(cls, text: str | None) -> str | None:
        if text is not None and not _HASH.fullmatch(text):
            raise ValueError("must be 64 hex digits (lower case), the SHA-256 of the secret")
        return text

    @field_validator("expires")
    @classmethod
    def _is_time(cls, text: str | None) -> str | None:
        if text is not None:
            parse_time(text)
        return text

    @field_validator("priority")
    @classmethod
    def _is_range(cls, priority: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if priority is not None and (len(priority) != 2 or priority[0] > priority[1]):
            raise ValueError("must be [lowest, highest]")
        return priority

    @model_validator(mode="after")
    def _is_whole(self) -> KeyConfig:
        if not self.name:
            raise ValueError("a key needs a `name`")
        if (self.key is None) == (self.key_hash is None):
            raise ValueError(f'the key "{self.name}" needs either `key` or `key_hash`')
        return self

    @property
    def public_id(self) -> str:
        return self.id or "k_" + re.sub(r"[^A-Za-z0-9_.-]", "-", self.name)[:62]

    @property
    def digest(self) -> bytes | None:
        """Of `key_hash`; None where the secret itself is said."""
        match = _HASH.fullmatch(self.key_hash) if self.key_hash is not None else None
        return bytes.fromhex(match[1]) if match else None

    @property
    def expires_at(self) -> float | None:
        return None if self.expires is None else parse_time(self.expires)


def parse_time(text: str) -> float:
    """Unix seconds of "2027-01-31" or "2027-01-31T12:00" (UTC where no zone is said). Raises `ValueError`."""
    try:
        parsed = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as error:
        raise ValueError('must be a date or time such as "2027-01-31" or "2027-01-31T12:00Z", in quotes') from error
    return (parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=timezone.utc)).timestamp()
