from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from llm_inference.errors import NotReadyError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants import directory as module
from llm_inference.gateway.tenants.directory import REFRESH_S, REVOCATION_S, KeyDirectory
from llm_inference.gateway.tenants.key import ApiKey, digest_of, new_secret
from llm_inference.gateway.tenants.key_store import KeyStore
from tests.gateway.serving import until


class Shelf:
    """A store that counts its queries and can be away."""

    def __init__(self) -> None:
        self.keys: dict[bytes, ApiKey] = {}
        self.queries = 0
        self.away = False
        self.delay_s = 0.0

    def add(self) -> str:
        secret = new_secret()
        self.keys[digest_of(secret)] = ApiKey(f"k_{len(self.keys)}", "n", digest_of(secret))
        return secret

    def find(self, digests: Collection[bytes]) -> dict[bytes, ApiKey]:
        self.queries += 1
        time.sleep(self.delay_s)
        if self.away:
            raise NotReadyError("away")
        return {digest: self.keys[digest] for digest in digests if digest in self.keys}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.05)


async def test_one_query_for_a_new_key_and_none_after_it() -> None:
    shelf = Shelf()
    shelf.delay_s = 0.02
    secret = shelf.add()
    directory = KeyDirectory(KeyRing(["plain"]), shelf)
    found = await asyncio.gather(*(directory.find(secret) for _ in range(50)))
    assert {key.id for key in found if key is not None} == {"k_0"}
    assert None not in found
    assert shelf.queries == 1
    assert (await directory.find("plain")) is not None
    assert shelf.queries == 1


async def test_what_cannot_be_a_key_is_not_looked_for() -> None:
    shelf = Shelf()
    directory = KeyDirectory(KeyRing([]), shelf)
    for secret in ("", "x", "sk-short", "sk-" + "x" * 500, "' OR 1=1 --"):
        assert await directory.find(secret) is None
    assert shelf.queries == 0
    guessed = new_secret()
    for _ in range(20):
        assert await directory.find(guessed) is None
    assert shelf.queries == 1
    for _ in range(2000):
        await directory.find(new_secret())
    assert len(directory._unknown) <= 1024


async def test_a_revocation_is_in_force_within_the_stated_time(tmp_path: Path) -> None:
    store = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}")
    made, secret = store.create("bob")
    directory = KeyDirectory(KeyRing([]), store)
    directory.start()
    assert await directory.find(secret) == made
    store.revoke(made.id)
    begun = time.monotonic()
    while await directory.find(secret) is not None:
        await asyncio.sleep(0.05)
    assert time.monotonic() - begun < REVOCATION_S
    await directory.close()
    store.close()


async def test_the_stated_time_leaves_room_for_a_slow_store() -> None:
    from llm_inference.gateway.tenants.database import TIMEOUT_S

    assert REFRESH_S + TIMEOUT_S < REVOCATION_S <= 5


@pytest.mark.usefixtures("quick")
async def test_changes_and_removals_arrive() -> None:
    shelf = Shelf()
    secret = shelf.add()
    directory = KeyDirectory(KeyRing([]), shelf)
    directory.start()
    assert await directory.find(secret) is not None
    digest = digest_of(secret)
    shelf.keys[digest] = replace(shelf.keys[digest], name="renamed")
    await asyncio.sleep(0.2)
    found = await directory.find(secret)
    assert found is not None
    assert found.name == "renamed"
    del shelf.keys[digest]
    await asyncio.sleep(0.2)
    assert await directory.find(secret) is None
    await directory.close()


@pytest.mark.usefixtures("quick")
async def test_while_the_store_is_away_known_keys_go_on(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    known, unknown = shelf.add(), shelf.add()
    directory = KeyDirectory(KeyRing([]), shelf)
    directory.start()
    assert await directory.find(known) is not None
    shelf.away = True
    await asyncio.sleep(0.2)
    assert await directory.find(known) is not None
    with pytest.raises(NotReadyError) as refusal:
        await directory.find(unknown)
    assert refusal.value.public_code == "key_store_unavailable"
    assert sum("is away" in record.getMessage() for record in caplog.records) == 1
    shelf.away = False
    await until(lambda: not directory._is_away)
    assert await directory.find(unknown) is not None
    await directory.close()


async def test_expiry_needs_no_query() -> None:
    shelf = Shelf()
    secret = shelf.add()
    digest = digest_of(secret)
    shelf.keys[digest] = replace(shelf.keys[digest], expires=time.time() + 0.1)
    directory = KeyDirectory(KeyRing([]), shelf)
    assert await directory.find(secret) is not None
    await asyncio.sleep(0.12)
    assert await directory.find(secret) is None
