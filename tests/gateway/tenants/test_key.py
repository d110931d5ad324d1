from __future__ import annotations

import hashlib

import pytest

from llm_inference.gateway.tenants.key import ApiKey, Scope, could_be_ours, digest_of, new_id, new_secret, plain_key


def test_secrets_have_256_random_bits_and_a_form() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    for secret in secrets:
        assert could_be_ours(secret)
        assert len(secret) == 46
    for other in ("", "sk-", "sk-correct-horse", next(iter(secrets)) + "x", "s" * 46, "sk-" + "ü" * 43):
        assert not could_be_ours(other)
    assert new_id() != new_id()


def test_the_digest_is_sha256() -> None:
    assert digest_of("sk-a") == hashlib.sha256(b"sk-a").digest()
    assert len(digest_of("ü\udcff")) == 32


def test_a_bare_string_is_a_key_without_the_admins_rights() -> None:
    key = plain_key("secret")
    assert key == plain_key("secret")
    assert key.id != plain_key("secret2").id
    assert "admin" not in key.scope.routes
    assert key.id[2:] not in hashlib.sha256(b"secret").hexdigest()


def test_validity() -> None:
    key = ApiKey("k", "n", b"", expires=100.0, revoked=50.0)
    assert key.valid_at(49.9)
    assert not key.valid_at(50.0)
    assert not ApiKey("k", "n", b"", expires=100.0).valid_at(100.0)
    assert ApiKey("k", "n", b"").valid_at(1e12)


@pytest.mark.parametrize(
    ("globs", "name", "allowed"),
    [
        (("*",), "anything", True),
        (("small",), "small", True),
        (("small",), "Small", False),
        (("qwen*", "small"), "qwen-7b", True),
        (("qwen*",), "my-qwen", False),
        ((), "small", False),
    ],
)
def test_models_are_globs(globs: tuple[str, ...], name: str, allowed: bool) -> None:
    assert Scope(models=globs).may_use_model(name) is allowed
    assert Scope(tiers=globs).may_use_tier(name) is allowed


def test_priorities_are_brought_into_the_range() -> None:
    assert [Scope(priority=(-1, 5)).clamp(value) for value in (-9, 0, 9)] == [-1, 0, 5]
    assert Scope().clamp(-9) == -9
