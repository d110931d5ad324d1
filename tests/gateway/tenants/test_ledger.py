from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from llm_inference.errors import NotReadyError
from llm_inference.gateway.tenants.ledger import Entry, Ledger


class Book:
    """Keeps what is written; refuses, or writes and says that it failed."""

    def __init__(self) -> None:
        self.rows: dict[str, Entry] = {}
        self.writes = 0
        self.refuse = False
        self.doubt = False
        self.hold = threading.Event()
        self.hold.set()

    def write(self, entries: Sequence[Entry]) -> None:
        self.writes += 1
        self.hold.wait(10)
        if self.refuse:
            raise NotReadyError("away")
        for entry in entries:
            self.rows.setdefault(entry.row_id, entry)
        if self.doubt:
            raise NotReadyError("the connection was lost at the commit")

    @property
    def totals(self) -> tuple[int, int, int]:
        rows = self.rows.values()
        return (
            sum(row.requests for row in rows),
            sum(row.prompt_tokens for row in rows),
            sum(row.completion_tokens for row in rows),
        )


def entry(ledger: Ledger, **fields: Any) -> Entry:
    values: dict[str, Any] = {
        "row_id": ledger.new_row_id(),
        "time": 7201.5,
        "request_id": "r",
        "key_id": "k",
        "model": "m",
        "route": "/x",
        "tier": "",
        "replica": "",
        "status": 200,
        "finish_reason": "stop",
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "cached_tokens": 1,
        "ttft_s": 0.1,
        "duration_s": 0.5,
    }
    return Entry(**{**values, **fields})


def wait(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_rows_come_in_batches() -> None:
    book = Book()
    ledger = Ledger(book)
    ledger.start()
    for _ in range(500):
        ledger.add(entry(ledger))
    wait(lambda: book.totals == (500, 1500, 2500))
    assert book.writes <= 5  # one, unless the machine stood still meanwhile
    ledger.close()


def test_closing_writes_what_is_left() -> None:
    book = Book()
    ledger = Ledger(book, interval_s=60)
    ledger.start()
    ledger.add(entry(ledger))
    begun = time.monotonic()
    ledger.close()
    assert book.totals == (1, 3, 5)
    assert time.monotonic() - begun < 50, "closing does not wait for the interval"


def test_a_full_queue_sums_up_and_loses_nothing() -> None:
    book = Book()
    book.hold.clear()
    outcomes: Counter[str] = Counter()
    ledger = Ledger(book, lambda what, number: outcomes.update({what: number}), interval_s=0.01, max_queued=10)
    ledger.start()
    for number in range(1000):  # which never waits for the database: that is held until later
        ledger.add(entry(ledger, key_id=f"k{number % 2}", time=7200.0 + number))
    book.hold.set()
    wait(lambda: book.totals == (1000, 3000, 5000))
    sums = [row for row in book.rows.values() if row.requests > 1]
    assert {(row.key_id, row.time, row.request_id) for row in sums} == {("k0", 7200.0, ""), ("k1", 7200.0, "")}
    assert outcomes["summed"] == sum(row.requests for row in book.rows.values() if row.request_id == "")
    assert outcomes["summed"] + outcomes["written"] == 1000
    ledger.close()


@pytest.mark.parametrize("kind", ["refuse", "doubt"])
def test_a_database_that_fails_is_tried_again_and_counts_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    setattr(book, kind, True)
    ledger = Ledger(book, interval_s=0.01, max_queued=5)
    ledger.start()
    for _ in range(20):
        ledger.add(entry(ledger))
    wait(lambda: book.writes >= 1)
    for _ in range(20):
        ledger.add(entry(ledger))
    setattr(book, kind, False)
    wait(lambda: book.totals == (40, 120, 200))
    ledger.close()
    assert book.totals == (40, 120, 200)
    assert sum("cannot be written" in record.getMessage() for record in caplog.records) == 1


def test_sums_in_doubt_count_once() -> None:
    """The queue's transaction succeeds, that of the sums is in doubt, and more comes to be summed."""
    book = Book()
    ledger = Ledger(book, interval_s=0.01, max_queued=2)
    for _ in range(6):
        ledger.add(entry(ledger))
    original = book.write

    def write(entries: Sequence[Entry]) -> None:
        original(entries)
        if any(one.requests > 1 for one in entries) and book.writes < 4:
            raise NotReadyError("the connection was lost at the commit")

    book.write = write  # type: ignore[method-assign]
    ledger.start()
    wait(lambda: book.writes >= 2)
    for _ in range(6):
        ledger.add(entry(ledger))
    wait(lambda: book.totals == (12, 36, 60))
    ledger.close()
    assert book.totals == (12, 36, 60)


def test_what_cannot_be_written_in_the_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    book.refuse = True
    outcomes: Counter[str] = Counter()
    ledger = Ledger(book, lambda what, number: outcomes.update({what: number}), interval_s=0.01, max_queued=3)
    ledger.start()
    for _ in range(7):
        ledger.add(entry(ledger))
    wait(lambda: book.writes >= 1)
    ledger.close(timeout_s=2)
    assert outcomes["lost"] == 7
    assert "7 requests are not in the ledger: 21 prompt and 35 completion tokens" in caplog.text
    ledger.add(entry(ledger))
    assert outcomes["lost"] == 8
