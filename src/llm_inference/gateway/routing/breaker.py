"""Passive ejection: what a replica's own answers say of its health. No probes of its own, no timers.

healthy ──failures in a row──► ejected ──time passes──► half open: one request tries it
   ▲                              ▲                          │
   └────────── it answers ────────┼──────────────────────────┤
                                  └── it fails: twice as long ┘
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ejection:
    """When a replica is left alone, and for how long."""

    after: int = 3  # failures in a row
    first_s: float = 2.0
    max_s: float = 60.0


class Breaker:
    """`clock` gives monotonic seconds."""

    def __init__(self, ejection: Ejection | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ejection = ejection or Ejection()
        self._clock = clock
        self._num_failures = 0  # in a row
        self._num_in_row = 0  # ejections since the last answer
        self._probing = False
        #: Monotonic seconds from which on it may be tried again; 0: it is not ejected.
        self.ejected_until = 0.0
        self.num_ejections = 0

    @property
    def ejected(self) -> bool:
        return self.ejected_until > 0.0

    @property
    def available(self) -> bool:
        """Whether the next request may go there: healthy, or half open and nobody tries it yet."""
        if not self.ejected_until:
            return True
        return not self._probing and self._clock() >= self.ejected_until

    def begin(self) -> bool:
        """A request goes there. True: it is the one that tries; give that to `end`."""
        if not self.ejected_until or self._probing:
            return False
        self._probing = True
        return True

    def end(self, probing: bool) -> None:
        """The request is over, however it ended."""
        if probing:
            self._probing = False

    def succeeded(self) -> None:
        if self._num_failures or self.ejected_until:
            self._num_failures = self._num_in_row = 0
            self.ejected_until = 0.0

    def failed(self, *, at_once: bool = False) -> bool:
        """`at_once`: nobody is there, which needs no second look. True: it is ejected by this."""
        if self.ejected_until > self._clock():
            return False  # it is left alone already: who was in flight then says nothing new
        self._num_failures += 1
        if not (at_once or self.ejected_until or self._num_failures >= self._ejection.after):
            return False
        wait_s = min(self._ejection.first_s * 2**self._num_in_row, self._ejection.max_s)
        self.ejected_until = self._clock() + wait_s
        self._num_in_row = min(self._num_in_row + 1, 32)
        self.num_ejections += 1
        return True
