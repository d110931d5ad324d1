"""In real SQLite and real PostgreSQL."""

from __future__ import annotations

import calendar
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.gateway.tenants.ledger import Entry
from llm_inference.gateway.tenants.ledger_store import LedgerStore

_WRITER = """
import sys
from llm_inference.gateway.tenants.ledger import Entry
from llm_inference.gateway.tenants.ledger_store import LedgerStore
store = LedgerStore(sys.argv[1])
for batch in range(20):
    store.write([
        Entry(f"{sys.argv[2]}-{batch}-{row}", 1.0, "r", "k", "m", "/x", "", "", 200, "stop", 2, 3, 1, None, 0.5)
        for row in range(50)
    ])
store.close()
"""


def at(*day: int) -> float:
    return float(calendar.timegm((*day, 12, 0, 0, 0, 0, 0)))


def entry(row_id: str, **fields: Any) -> Entry:
    values: dict[str, Any] = {"time": at(2026, 11, 30), "request_id": "r", "key_id": "k_1", "model": "small"}
    values |= {"route": "/v1/completions", "tier": "", "replica": "", "status": 200, "finish_reason": "stop"}
    values |= {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4, "ttft_s": None, "duration_s": 0.25}
    return Entry(row_id, **{**values, **fields})


def test_sums_by_what_is_asked(database_url: str) -> None:
    store = LedgerStore(database_url)
    store.write(
        [
            entry("a"),
            entry("b", key_id="k_2", status=429, prompt_tokens=0, completion_tokens=0, cached_tokens=0),
            entry("c", time=at(2026, 12, 1), model="large", requests=3, prompt_tokens=2**40),
        ]
    )
    by_key = store.usage(["key"])
    assert [(row["key"], row["model"], row["requests"], row["prompt_tokens"]) for row in by_key] == [
        ("k_1", "large", 3, 2**40),
        ("k_1", "small", 1, 10),
        ("k_2", "small", 1, 0),
    ]
    assert all(type(row["prompt_tokens"]) is int for row in by_key)
    days = store.usage(["day", "model", "status"])
    assert [(row["day"], row["model"], row["status"], row["completion_tokens"]) for row in days] == [
        ("2026-11-30", "small", 200, 5),
        ("2026-11-30", "small", 429, 0),
        ("2026-12-01", "large", 200, 5),
    ]
    assert [row["month"] for row in store.usage(["month"])] == ["2026-11", "2026-12"]
    assert [row["requests"] for row in store.usage(["day"], since=at(2026, 12, 1))] == [3]
    assert [row["requests"] for row in store.usage(["day"], until=at(2026, 12, 1))] == [2]
    assert [row["requests"] for row in store.usage([])] == [3, 2]
    with pytest.raises(ConfigError, match='"colour" is not among key, model'):
        store.usage(["colour"])
    store.close()


def test_a_row_that_is_there_counts_once(database_url: str) -> None:
    store = LedgerStore(database_url)
    store.write([entry("a"), entry("b")])
    store.write([entry("b", prompt_tokens=99), entry("c")])
    assert store.usage(["key"])[0]["prompt_tokens"] == 30
    store.close()


def test_a_large_batch_is_one_transaction(database_url: str) -> None:
    store = LedgerStore(database_url)
    store.write([entry(f"r{number}") for number in range(10_000)])
    assert store.usage(["key"])[0]["requests"] == 10_000
    store.close()


def test_several_processes_write_at_once(database_url: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, database_url, str(number)]) for number in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    store = LedgerStore(database_url)
    (total,) = store.usage(["key"])
    assert (total["requests"], total["prompt_tokens"], total["completion_tokens"]) == (3000, 6000, 9000)
    store.close()


def test_the_file_is_the_users_alone(tmp_path: Path) -> None:
    store = LedgerStore(f"sqlite:///{tmp_path / 'deep' / 'ledger.db'}")
    store.prepare()
    store.close()
    assert (tmp_path / "deep" / "ledger.db").stat().st_mode & 0o777 == 0o600
