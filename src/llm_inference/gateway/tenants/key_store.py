"""The table of API keys: made, found by digest, revoked, rotated. Synchronous; callers on an event loop use a thread.

Secrets are never stored, so a stolen copy of the table opens nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, replace
from typing import Any

import msgspec
from sqlalchemy import Column, Double, MetaData, Row, Table, Text, insert, or_, select, update

from llm_inference.errors import ConfigError
from llm_inference.gateway.tenants.database import Database
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of, new_id, new_secret
from llm_inference.gateway.tenants.limits import NO_LIMITS, Limits

_METADATA = MetaData()
_KEYS = Table(
    "api_keys",
    _METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    # Of the secret before the last rotation, and until when it is good.
    Column("old_digest", Text, unique=True),
    Column("old_until", Double),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Column("scope", Text, nullable=False),  # JSON of `Scope`
    Column("limits", Text, nullable=False),  # JSON of `Limits`
)
#: In one query; databases bound the parameters of a statement.
_MAX_DIGESTS = 500


class KeyStore:
    """Over `sqlite:///FILE` or `postgresql://…`. Methods raise `NotReadyError` when it cannot be reached."""

    def __init__(self, url: str, where: str = "api.key_store") -> None:
        self._database = Database(url, where, _METADATA)

    def create(
        self, name: str, *, scope: Scope | None = None, limits: Limits = NO_LIMITS, expires: float | None = None
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which is nowhere else."""
        secret = new_secret()
        key = ApiKey(
            id=new_id(),
            name=name,
            digest=digest_of(secret),
            created=time.time(),
            expires=expires,
            scope=scope or Scope(),
            limits=limits,
        )
        with self._database.transaction() as connection:
            connection.execute(
                insert(_KEYS).values(
                    id=key.id,
                    name=key.name,
                    digest=key.digest.hex(),
                    created=key.created,
                    expires=key.expires,
                    scope=_json(key.scope),
                    limits=_json(key.limits),
                )
            )
        return key, secret

    def find(self, digests: Collection[bytes]) -> dict[bytes, ApiKey]:
        """The keys of those digests that are in the table, revoked and expired ones included."""
        wanted = [digest.hex() for digest in digests]
        rows: list[Row[Any]] = []
        with self._database.transaction() as connection:
            for place in range(0, len(wanted), _MAX_DIGESTS):
                some = wanted[place : place + _MAX_DIGESTS]
                either = or_(_KEYS.c.digest.in_(some), _KEYS.c.old_digest.in_(some))
                rows += connection.execute(select(_KEYS).where(either)).all()
        found: dict[bytes, ApiKey] = {}
        for row in rows:
            key = _key(row)
            found[key.digest] = key
            if row.old_digest is not None:
                old = bytes.fromhex(row.old_digest)
                until = row.old_until if key.expires is None else min(row.old_until, key.expires)
                found[old] = replace(key, digest=old, expires=until)
        return {digest: found[digest] for digest in digests if digest in found}

    def all(self) -> list[ApiKey]:
        with self._database.transaction() as connection:
            return [_key(row) for row in connection.execute(select(_KEYS).order_by(_KEYS.c.created, _KEYS.c.id))]

    def revoke(self, key_id: str) -> ApiKey:
        """Revoked now, for good; a key that is revoked stays so since then. Raises `ConfigError` for no such key."""
        with self._database.transaction() as connection:
            connection.execute(
                update(_KEYS).where(_KEYS.c.id == key_id, _KEYS.c.revoked.is_(None)).values(revoked=time.time())
            )
            return self._one(connection, key_id)

    def rotate(self, key_id: str, overlap_s: float = 0.0) -> tuple[ApiKey, str]:
        """A new secret for the key; the old one is good for `overlap_s` more. Raises `ConfigError`."""
        secret = new_secret()
        with self._database.transaction() as connection:
            before = self._one(connection, key_id)
            if before.revoked is not None:
                raise ConfigError(f"the key {key_id} is revoked; create a new one")
            connection.execute(
                update(_KEYS)
                .where(_KEYS.c.id == key_id)
                .values(
                    digest=digest_of(secret).hex(),
                    old_digest=before.digest.hex() if overlap_s > 0 else None,
                    old_until=time.time() + overlap_s if overlap_s > 0 else None,
                )
            )
            return self._one(connection, key_id), secret

    def close(self) -> None:
        self._database.close()

    def _one(self, connection: Any, key_id: str) -> ApiKey:
        row = connection.execute(select(_KEYS).where(_KEYS.c.id == key_id)).one_or_none()
        if row is None:
            raise ConfigError(f"there is no key {key_id[:100]!r} in this store; `llm-inference keys list` shows them")
        return _key(row)


def _json(value: Scope | Limits) -> str:
    return msgspec.json.encode({name: item for name, item in asdict(value).items() if item is not None}).decode()


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        digest=bytes.fromhex(row.digest),
        created=row.created,
        expires=row.expires,
        revoked=row.revoked,
        scope=msgspec.json.decode(row.scope, type=Scope),
        limits=msgspec.json.decode(row.limits, type=Limits),
    )
