"""Which key a request shows: those of the configuration at once, those of the store through a cache.

    known and checked within REFRESH_S    answered from memory
    used within IDLE_S                    looked at again every REFRESH_S, all in one query, beside the requests
    new, or idle before                   one query for this request

So no request of a known key waits for the database, and what `keys revoke` says is true everywhere within
`REVOCATION_S`. While the store is away known keys go on, and unknown ones get 503, since nobody can tell whether they
are good. What cannot be a key of ours is refused without a query.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from llm_inference.errors import LLMInferenceError, NotReadyError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants.key import ApiKey, could_be_ours, digest_of

_LOG = logging.getLogger("llm_inference.gateway.tenants")

REFRESH_S = 2.0
#: Within this time a revocation is in force: the interval, the longest query, and room.
REVOCATION_S = 5.0
IDLE_S = 60.0
#: Secrets of the right form that no store knows; somebody tries them out. The oldest are forgotten.
_MAX_UNKNOWN = 1024
#: Queries for new keys at once; the others wait.
_MAX_LOOKUPS = 4


class FindsKeys(Protocol):
    """`KeyStore`, as far as it is needed here. Synchronous: called in a thread."""

    def find(self, digests: Collection[bytes]) -> dict[bytes, ApiKey]: ...


@dataclass(slots=True)
class _Entry:
    key: ApiKey
    used: float


class KeyDirectory:
    """`start` begins the looking again, `close` ends it."""

    def __init__(self, ring: KeyRing, store: FindsKeys | None = None) -> None:
        self._ring = ring
        self._store = store
        self._entries: dict[bytes, _Entry] = {}
        self._unknown: OrderedDict[bytes, float] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[_Entry | None]] = {}
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._refreshing: asyncio.Task[None] | None = None
        self._is_away = False

    def start(self) -> None:
        if self._store is not None and self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None

    async def find(self, secret: str) -> ApiKey | None:
        """The valid key of `secret`. Raises `NotReadyError` where only the store could tell and it is away."""
        key = await self._ring.find(secret)
        if key is not None or self._store is None or not could_be_ours(secret):
            return key
        digest = digest_of(secret)
        entry = self._entries.get(digest)
        if entry is None:
            entry = await self._shared_look_up(digest)
        if entry is None or not hmac.compare_digest(digest, entry.key.digest):
            return None
        entry.used = time.monotonic()
        return entry.key if entry.key.valid_at(time.time()) else None

    async def _shared_look_up(self, digest: bytes) -> _Entry | None:
        """One query for all requests that wait for the same key, and one that goes on when some of them leave."""
        task = self._pending.get(digest)
        if task is None:
            task = self._pending[digest] = asyncio.create_task(self._look_up(digest))

            def done(task: asyncio.Task[_Entry | None]) -> None:
                del self._pending[digest]
                if not task.cancelled():
                    task.exception()  # whoever still waits has seen it; nobody else needs to

            task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _look_up(self, digest: bytes) -> _Entry | None:
        async with self._lookups:
            if time.monotonic() < self._unknown.get(digest, 0.0):
                return None
            found = await self._ask((digest,))
        key = found.get(digest)
        if key is None:
            self._unknown[digest] = time.monotonic() + REFRESH_S
            if len(self._unknown) > _MAX_UNKNOWN:
                self._unknown.popitem(last=False)
            return None
        entry = self._entries[digest] = _Entry(key, time.monotonic())
        return entry

    async def _ask(self, digests: Collection[bytes]) -> dict[bytes, ApiKey]:
        assert self._store is not None
        try:
            found = await asyncio.to_thread(self._store.find, digests)
        except LLMInferenceError as error:
            if not self._is_away:
                self._is_away = True
                _LOG.warning("the store of the keys is away, known keys go on: %s", error.message)
            raise NotReadyError(
                "This API key cannot be checked now: the store of the keys is away; retry later.",
                code="key_store_unavailable",
                retry_after_s=1.0,
            ) from error
        if self._is_away:
            self._is_away = False
            _LOG.info("the store of the keys is back")
        return found

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            if not self._entries:
                continue
            asked = tuple(self._entries)
            try:
                found = await self._ask(asked)
            except NotReadyError:
                continue
            except Exception:
                _LOG.exception("looking at the keys again failed; they stay as they are")
                continue
            idle_since = time.monotonic() - IDLE_S
            for digest in asked:
                key = found.get(digest)
                if key is None or self._entries[digest].used < idle_since:
                    del self._entries[digest]
                else:
                    self._entries[digest].key = key
