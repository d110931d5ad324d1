from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.cli.main import main
from llm_inference.gateway.tenants.key import could_be_ours, digest_of
from llm_inference.gateway.tenants.key_store import KeyStore


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["keys", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code, out, err = call(capsys, *argv, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_from_making_to_revoking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", f"sqlite:///{tmp_path / 'keys.db'}"]
    made = answer(
        capsys, "create", *store, "--name", "bob", "--models", "a*, b", "--routes", "inference,admin",
        "--priority=-1:5", "--expires", "30d", "--requests-per-minute", "60", "--price-per-day", "0.5",
    )  # fmt: skip
    assert could_be_ours(made["secret"])
    assert made["scope"] == {
        "models": ["a*", "b"],
        "routes": ["inference", "admin"],
        "tiers": ["*"],
        "priority": [-1, 5],
    }
    assert made["limits"] == {"requests_per_minute": 60, "price_per_day": 0.5}
    assert made["expires"] - made["created"] == pytest.approx(30 * 86_400, abs=5)

    listed = answer(capsys, "list", *store)
    assert [key["id"] for key in listed] == [made["id"]]
    assert "secret" not in json.dumps(listed)
    rotated = answer(capsys, "rotate", made["id"], *store, "--overlap", "1h")
    assert rotated["secret"] != made["secret"]
    opened = KeyStore(store[1])
    digests = [digest_of(made["secret"]), digest_of(rotated["secret"])]
    assert set(opened.find(digests)) == set(digests)
    assert answer(capsys, "revoke", made["id"], *store)["revoked"] is not None
    opened.close()


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"api: {{key_store: sqlite, state_dir: {tmp_path}}}\n")
    code, out, _ = call(capsys, "create", "--config", str(file), "--name", "bob")
    assert code == 0
    assert "secret: sk-" in out
    assert "shown this once" in out
    _, out, _ = call(capsys, "list", "--config", str(file))
    assert [line.split()[1:3] for line in out.splitlines()] == [["NAME", "STATE"], ["bob", "valid"]]
    assert (tmp_path / "keys.db").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["create", "--name", "x", "--routes", "all"], "--routes: Input should be 'inference'"),
        (["create", "--name", "x", "--priority", "3"], "--priority: must be LOWEST:HIGHEST"),
        (["create", "--name", "x", "--priority", "3:1"], "--priority: must be [lowest, highest]"),
        (["create", "--name", "x", "--expires", "soon"], "--expires: must be a date or time"),
        (["create", "--name", "x", "--tokens-per-day", "0"], "--tokens-per-day: Input should be greater"),
        (["create", "--name", ""], "--name: a key needs a `name`"),
        (["rotate", "k_1", "--overlap", "1"], "--overlap: must be a time such as"),
        (["revoke", "k_1"], "there is no key 'k_1'"),
    ],
)
def test_mistakes(argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *argv, "--store", f"sqlite:///{tmp_path / 'keys.db'}")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")


def test_a_wrong_store_is_named_by_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "list", "--store", "mysql://x")
    assert code == 2
    assert err.startswith("error: --store: mysql")
