"""The ledger's writer: takes an entry from the event loop in microseconds, writes batches in a thread of its own.

    add ── queue (MAX_QUEUED) ── every INTERVAL_S one transaction ── database
             │ full
             └── sums by hour, key, model, …: counted in fewer rows, never dropped in silence

An entry has a row id of its own, so a batch whose transaction was in doubt is written again without counting twice.
What a killed process had not written is lost: at most the last second (`INTERVAL_S`, and the transaction).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from llm_inference.errors import LLMInferenceError

_LOG = logging.getLogger("llm_inference.gateway.tenants")

INTERVAL_S = 0.5
MAX_QUEUED = 10_000
#: After a failure; doubled with each further one.
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 10.0
_HOUR_S = 3600


class Entry(msgspec.Struct, frozen=True):
    """One request; or the sum of `requests` of them that had no room in the queue."""

    row_id: str
    time: float  # Unix seconds: when it began; of a sum the hour's beginning
    request_id: str
    key_id: str  # "": keyless
    model: str
    route: str
    tier: str
    replica: str
    status: int
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float | None
    duration_s: float
    requests: int = 1


class WritesLedger(Protocol):
    """`LedgerStore`, as far as it is needed here. Synchronous: called in the writer's thread."""

    def write(self, entries: Sequence[Entry]) -> None:
        """All or none, each once however often it is given. Raises `NotReadyError`."""
        ...


class Ledger:
    """`start` before the first `add`. `on_outcome(outcome, requests)` counts: written, summed, lost."""

    def __init__(
        self,
        store: WritesLedger,
        on_outcome: Callable[[str, int], None] = lambda outcome, requests: None,
        *,
        interval_s: float = INTERVAL_S,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._store = store
        self._on_outcome = on_outcome
        self._interval_s = interval_s
        self._max_queued = max_queued
        self._lock = threading.Lock()
        self._queue: list[Entry] = []
        self._sums: dict[tuple[object, ...], Entry] = {}
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._prefix = os.urandom(9).hex()
        self._numbers = itertools.count()
        self._closed = False

    def new_row_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def add(self, entry: Entry) -> None:
        """Never waits for the database, never raises."""
        with self._lock:
            closed = self._closed
            if not closed and len(self._queue) < self._max_queued:
                self._queue.append(entry)
            elif not closed:
                self._sum(entry)
        if closed:
            self._lose((entry,))
        if not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is there. What cannot be written within `timeout_s` goes to the log, in sums."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._lock:
            left = [*self._queue, *self._sums.values()]
            self._queue, self._sums, self._closed = [], {}, True
        if left:
            self._lose(left)

    def _lose(self, left: Sequence[Entry]) -> None:
        requests = sum(entry.requests for entry in left)
        self._on_outcome("lost", requests)
        _LOG.error(
            "%d requests are not in the ledger: %d prompt and %d completion tokens",
            requests,
            sum(entry.prompt_tokens for entry in left),
            sum(entry.completion_tokens for entry in left),
        )

    def _sum(self, entry: Entry) -> None:
        hour = entry.time // _HOUR_S * _HOUR_S
        key = (hour, entry.key_id, entry.model, entry.route, entry.tier, entry.replica, entry.status)
        before = self._sums.get(key)
        self._on_outcome("summed", entry.requests)
        if before is None:
            self._sums[key] = msgspec.structs.replace(entry, time=hour, request_id="", finish_reason="", ttft_s=None)
            return
        self._sums[key] = msgspec.structs.replace(
            before,
            prompt_tokens=before.prompt_tokens + entry.prompt_tokens,
            completion_tokens=before.completion_tokens + entry.completion_tokens,
            cached_tokens=before.cached_tokens + entry.cached_tokens,
            duration_s=before.duration_s + entry.duration_s,
            requests=before.requests + entry.requests,
        )

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            self._wake.wait()
            stopping = self._stop.wait(self._interval_s)
            self._wake.clear()
            try:
                self._write_all()
            except Exception as error:
                if pause_s == _FIRST_PAUSE_S:
                    why = error.message if isinstance(error, LLMInferenceError) else repr(error)
                    _LOG.warning("the ledger cannot be written; its rows are kept and tried again: %s", why)
                if stopping or self._stop.wait(pause_s):
                    return  # this was the last attempt, or nearly
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                self._wake.set()
                continue
            if pause_s != _FIRST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
                _LOG.info("the ledger is written again")
            if stopping:
                return

    def _write_all(self) -> None:
        """The queue first. Sums grow until the database has shown that it works."""
        with self._lock:
            batch = list(self._queue)
        if batch:
            self._store.write(batch)
            with self._lock:
                del self._queue[: len(batch)]
            self._on_outcome("written", len(batch))
        with self._lock:
            sums, self._sums = self._sums, {}
        if sums:
            try:
                self._store.write(list(sums.values()))
            except Exception:
                # They may have been written: as they are, under their row ids, they count once. New sums are others.
                with self._lock:
                    self._sums.update({(entry.row_id,): entry for entry in sums.values()})
                raise
