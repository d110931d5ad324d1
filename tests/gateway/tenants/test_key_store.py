"""In real SQLite and real PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from llm_inference.errors import ConfigError, NotReadyError
from llm_inference.gateway.tenants.key import Scope, digest_of
from llm_inference.gateway.tenants.key_store import KeyStore
from llm_inference.gateway.tenants.limits import Limits
from tests.gateway.tenants.services import PostgresServer, free_port


def test_a_key_comes_back_as_it_was_made(database_url: str) -> None:
    store = KeyStore(database_url)
    scope = Scope(models=("a*",), routes=("inference", "admin"), tiers=("golden",), priority=(-2, 3))
    made, secret = store.create("bob", scope=scope, limits=Limits(tokens_per_day=5, price_per_day=0.5), expires=2e9)
    other, _ = store.create("eve")
    store.close()

    store = KeyStore(database_url)
    assert store.all() == [made, other]
    assert store.find([digest_of(secret)]) == {digest_of(secret): made}
    assert store.find([digest_of("sk-other")]) == {}
    assert store.find([]) == {}
    store.close()


def test_many_keys_at_once(database_url: str) -> None:
    store = KeyStore(database_url)
    _, secret = store.create("bob")
    digests = [digest_of(str(number)) for number in range(2000)]
    assert set(store.find([*digests, digest_of(secret)])) == {digest_of(secret)}
    store.close()


def test_no_secret_is_stored(tmp_path: Path) -> None:
    store = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}")
    _, secret = store.create("bob")
    store.close()
    assert secret.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert (tmp_path / "keys.db").stat().st_mode & 0o777 == 0o600


def test_revoked_is_for_good(database_url: str) -> None:
    store = KeyStore(database_url)
    made, secret = store.create("bob")
    revoked = store.revoke(made.id)
    assert revoked.revoked is not None
    assert not revoked.valid_at(time.time())
    assert store.revoke(made.id) == revoked, "the time is that of the first"
    assert store.find([digest_of(secret)])[digest_of(secret)] == revoked
    with pytest.raises(ConfigError, match="is revoked"):
        store.rotate(made.id)
    for action in (store.revoke, store.rotate):
        with pytest.raises(ConfigError, match="there is no key 'k_x'"):
            action("k_x")
    store.close()


def test_rotation_with_and_without_overlap(database_url: str) -> None:
    store = KeyStore(database_url)
    made, first = store.create("bob")
    rotated, second = store.rotate(made.id, overlap_s=100)
    assert (rotated.id, rotated.name) == (made.id, made.name)
    found = store.find([digest_of(first), digest_of(second)])
    assert found[digest_of(second)] == rotated
    old = found[digest_of(first)]
    assert old.id == made.id
    assert old.valid_at(time.time() + 90)
    assert not old.valid_at(time.time() + 110)
    _, third = store.rotate(made.id)
    assert set(store.find([digest_of(first), digest_of(second), digest_of(third)])) == {digest_of(third)}
    store.close()


def test_a_name_is_text_whatever_it_looks_like(database_url: str) -> None:
    store = KeyStore(database_url)
    name = "Robert'); DROP TABLE api_keys;--"
    made, _ = store.create(name)
    assert [key.name for key in store.all()] == [name]
    with pytest.raises(ConfigError):
        store.revoke("' OR '1'='1")
    assert store.all() == [made]
    store.close()


def test_several_may_make_the_table_at_once(database_url: str) -> None:
    stores = [KeyStore(database_url) for _ in range(6)]
    errors: list[BaseException] = []

    def create(store: KeyStore) -> None:
        try:
            store.create("bob")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=create, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(stores[0].all()) == 6
    for store in stores:
        store.close()


def test_postgresql_that_is_away_and_comes_back(running_postgres: PostgresServer) -> None:
    store = KeyStore(running_postgres.url)
    _, secret = store.create("bob")
    running_postgres.stop()
    try:
        begun = time.monotonic()
        with pytest.raises(NotReadyError, match="failed: ") as refusal:
            store.find([digest_of(secret)])
        assert time.monotonic() - begun < 25, "it does not wait for the database's own time-outs"
        assert refusal.value.public_code == "store_unavailable"
    finally:
        running_postgres.start()
    assert digest_of(secret) in store.find([digest_of(secret)])
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "is no database URL"),
        ("mysql://u:secret@h/d", "mysql is not a database that is known here"),
        ("sqlite://", "a database in memory is shared by nobody"),
        ("sqlite:////proc/nowhere/keys.db", "cannot be written"),
    ],
)
def test_wrong_urls(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        KeyStore(url, "--store")
    assert refusal.value.message.startswith("--store: ")
    assert "secret" not in refusal.value.message


def test_the_older_spelling_of_postgresql(running_postgres: PostgresServer) -> None:
    store = KeyStore(running_postgres.url.replace("postgresql://", "postgres://"))
    assert isinstance(store.all(), list)
    store.close()


def test_a_password_is_in_no_message() -> None:
    store = KeyStore(f"postgresql://user:hunter2@127.0.0.1:{free_port()}/none")
    with pytest.raises(NotReadyError) as refusal:
        store.all()
    assert "hunter2" not in refusal.value.message
    store.close()


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "keys.db").write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(NotReadyError, match="file is not a database"):
        KeyStore(f"sqlite:///{tmp_path / 'keys.db'}").all()


def test_it_is_wal(tmp_path: Path) -> None:
    store = KeyStore(f"sqlite:///{tmp_path / 'keys.db'}")
    store.create("bob")
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    store.close()
