"""Where the parts of a piece of work begin and end, told to whoever wants to know; to nobody, most of the time.

    with stages("tokenizer"):
        …

Code that works names its parts; what is done with them (clocks, ranges of a profiler) is decided elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol


class Stages(Protocol):
    """What a stage's name is turned into: something to do around it."""

    def __call__(self, name: str) -> AbstractContextManager[object]: ...


class _Nothing:
    """Shared by everybody: it holds no state."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None


_NOTHING = _Nothing()


def quiet(name: str) -> AbstractContextManager[object]:
    """`Stages` that nobody listens to."""
    return _NOTHING


class StageSums:
    """`Stages` that add up seconds and entries by name, from any thread."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._lock = threading.Lock()
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def __call__(self, name: str) -> AbstractContextManager[object]:
        return _Clocked(self, name, self._now)

    def add(self, name: str, seconds: float) -> None:
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self.counts[name] = self.counts.get(name, 0) + 1


class _Clocked:
    def __init__(self, sums: StageSums, name: str, now: Callable[[], float]) -> None:
        self._sums, self._name, self._now = sums, name, now
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = self._now()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._sums.add(self._name, self._now() - self._begun)
