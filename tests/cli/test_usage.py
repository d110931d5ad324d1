from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from llm_inference.cli.main import main
from llm_inference.gateway.tenants.ledger import Entry
from llm_inference.gateway.tenants.ledger_store import LedgerStore

NOON = 1_796_040_000.0  # 2026-11-30T12:00Z


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A ledger of four requests, and prices of one of its two models."""
    file = tmp_path / "c.yaml"
    file.write_text(
        f"api: {{ledger: sqlite, state_dir: {tmp_path}}}\n"
        "models: [{name: priced, price: {input: 1, output: 2, cached: 0.5}}, {name: free, model: x}]\n"
    )
    store = LedgerStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    rows = [("a", "priced", 0), ("a", "free", 0), ("b", "priced", 0), ("a", "priced", 1)]
    store.write(
        [
            Entry(
                f"r{number}", NOON + day * 86_400, "r", key, model, "/x", "", "", 200, "stop", 1000, 500, 400, None, 0.5
            )
            for number, (key, model, day) in enumerate(rows)
        ]
    )
    store.close()
    return file


def test_by_key_with_prices(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--config", str(config), "--by", "key", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    # 600 at 1, 400 at 0.5 and 500 at 2 a million: 0.0018 for each request of the priced model.
    assert [(row["key"], row["requests"], row["prompt_tokens"], row["price"]) for row in rows] == [
        ("a", 3, 3000, 0.0036),
        ("b", 1, 1000, 0.0018),
    ]
    assert set(rows[0]) == {
        "key", "requests", "prompt_tokens", "completion_tokens", "cached_tokens", "duration_s", "price"
    }  # fmt: skip


def test_csv_of_a_time(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "usage",
        "--config",
        str(config),
        "--by",
        "day,model",
        "--csv",
        "--since",
        "2026-11-30",
        "--until",
        "2026-12-01",
    ]
    assert main(argv) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["day"], row["model"], row["requests"]) for row in rows] == [
        ("2026-11-30", "free", "1"),
        ("2026-11-30", "priced", "2"),
    ]


def test_a_table_without_prices(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--ledger", f"sqlite:///{tmp_path / 'ledger.db'}"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["key", "model", "requests"]
    assert "price" not in lines[0]
    assert [line[:3] for line in lines[1:]] == [["a", "free", "1"], ["a", "priced", "2"], ["b", "priced", "1"]]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--by", "key,colour"], '--by: "colour" is not among key, model'),
        (["--since", "yesterday"], "--since: must be a date or time"),
        (["--ledger", "mysql://x"], "--ledger: mysql"),
    ],
)
def test_mistakes(config: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--config", str(config), *argv]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
