from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from llm_inference.config.load import load_config
from llm_inference.config.render import render_yaml
from llm_inference.config.tenants import KeyConfig, parse_time
from llm_inference.errors import ConfigError

HASH = hashlib.sha256(b"s").hexdigest()


def load(tmp_path: Path, text: str, **environ: str) -> Any:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return load_config(file, environ=environ)


def test_keys_limits_and_prices(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """
api:
  keys:
    - {name: a b, key: "${SECRET}", models: [x*], priority: [0, 9], limits: {tokens_per_day: 5}}
    - {name: b, id: team-b, key_hash: "HASH", routes: [admin], expires: "2027-01-31"}
  key_limits: {requests_per_minute: 60}
  key_store: sqlite
  ledger: postgresql://user:hunter2@db/ledger
  limits_store: redis://:hunter3@cache:6379/0
price: {input: 0.5, output: 1.5}
limits: {max_concurrent_requests: 4}
""".replace("HASH", HASH),
        SECRET="hunter1",
    )
    first, second = loaded.config.api.keys
    assert (first.public_id, first.digest, first.priority, first.limits.tokens_per_day) == ("k_a-b", None, (0, 9), 5)
    assert (second.public_id, second.digest, second.expires_at) == ("team-b", bytes.fromhex(HASH), 1801353600.0)
    model = loaded.config.models[0]
    assert (model.price.output, model.price.cached, model.limits.max_concurrent_requests) == (1.5, None, 4)
    printed = render_yaml(loaded)
    assert "hunter" not in printed
    assert "@db/ledger" in printed


@pytest.mark.parametrize(
    ("api", "message"),
    [
        ("keys: [{key: s}]", "a key needs a `name`"),
        ("keys: [{name: a}]", 'the key "a" needs either `key` or `key_hash`'),
        (f"keys: [{{name: a, key: s, key_hash: {HASH}}}]", "needs either `key` or `key_hash`"),
        ("keys: [{name: a, key_hash: abc}]", "must be 64 hex digits"),
        ("keys: [{name: a, key: s}, {name: a, key: t}]", 'two keys are named "a"'),
        ("keys: [{name: a, key: s}, {name: b, id: k_a, key: t}]", 'two keys are named "k_a"'),
        ("keys: [{name: a, key: s, expires: soon}]", 'must be a date or time such as "2027-01-31"'),
        ("keys: [{name: a, key: s, priority: [3]}]", "must be [lowest, highest]"),
        ("keys: [{name: a, key: s, priority: [3, 1]}]", "must be [lowest, highest]"),
        ("keys: [{name: a, key: s, routes: [inferenc]}]", 'did you mean "inference"?'),
        ("keys: [{name: a, key: s, model: x}]", 'unknown key; did you mean "models"?'),
        ("keys: [{name: a, key: s, limits: {request_per_minute: 1}}]", 'did you mean "requests_per_minute"?'),
        ("key_limits: {tokens: 1}", "unknown key"),
        ("key_limits: {requests_per_minute: 0}", "greater than or equal to 1"),
        ("limits: {requests_per_minute: 1}", "this key is called key_limits"),
        ("limits_fail: never", "must be 'local', 'open' or 'closed'"),
    ],
)
def test_mistakes_are_named(api: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, f"api:\n  {api}\n")
    assert message in refusal.value.message
    assert "c.yaml:2" in refusal.value.message


def test_a_secret_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, "api:\n  keys: [{name: a, key: 123456}]\n")
    assert "123456" not in refusal.value.message


def test_times() -> None:
    assert parse_time("1970-01-02") == 86_400
    assert parse_time("1970-01-01T01:00Z") == 3600
    assert parse_time("1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(ValueError, match="in quotes"):
        parse_time("tomorrow")


def test_a_key_without_anything_else_has_the_default_scope() -> None:
    key = KeyConfig.model_validate({"name": "a", "key": "s"})
    assert (key.models, key.routes, key.tiers, key.priority) == (
        ("*",),
        ("inference", "tokenize", "models"),
        ("*",),
        None,
    )


@pytest.mark.parametrize("secret", ["sk-abc\n", " sk-abc", "sk\tabc", "sk-ä", "sk-\u2028"])
@pytest.mark.parametrize(
    "config",
    [
        "api: {api_keys: ['${KEY}']}",
        "api: {keys: [{name: a, key: '${KEY}'}]}",
        "model: m\nurl: http://x\nengine: openai\napi_key: ${KEY}",
    ],
)
def test_a_key_that_no_header_carries(tmp_path: Path, config: str, secret: str) -> None:
    """It would be refused by nobody at the start, and let nobody in afterwards."""
    file = tmp_path / "c.yaml"
    file.write_text(config)
    with pytest.raises(ConfigError, match="no header carries") as caught:
        load_config(file, environ={"KEY": secret})
    assert "abc" not in caught.value.message
    assert "environment variable KEY" in caught.value.message


def test_a_user_and_a_key_for_one_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of the two"):
        load(tmp_path, "model: m\nengine: openai\nurl: http://u:p@h\napi_key: k\n")
