"""How much memory a tree of processes takes at its worst, sampled while it works. Linux; elsewhere nothing is known."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_PERIOD_S = 0.25


def tree(roots: Sequence[int], proc: Path = Path("/proc")) -> list[int]:
    """`roots` and all their descendants that are alive."""
    found = list(roots)
    for pid in found:
        with contextlib.suppress(OSError):
            for task in (proc / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    found += [int(child) for child in (task / "children").read_text().split()]
    return found


def resident_bytes(pids: Sequence[int], proc: Path = Path("/proc")) -> int:
    """The sum of what is resident; pages that two of them share count twice."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int((proc / str(pid) / "statm").read_text().split()[1]) * page
    return total


class PeakMemory:
    """While it is entered, a thread looks four times a second; `peak_bytes` is the largest sum seen."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = tuple(roots)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> PeakMemory:
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look()
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        if self._roots:
            self.peak_bytes = max(self.peak_bytes, resident_bytes(tree(self._roots)))

    def _watch(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self.look()
