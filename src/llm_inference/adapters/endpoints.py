"""Several servers of one model: which of them takes the next request, and which is left alone for a while.

    healthy ──failures──► ejected ──time passes──► half open: one request tries it ──► healthy, or ejected for longer

Passive: only real requests tell. Knows nothing of HTTP; it is told what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

EJECT_AFTER = 3  # failures in a row
EJECT_S = 2.0
MAX_EJECT_S = 60.0


@dataclass(slots=True)
class Endpoint:
    """One server's address and what is known of it."""

    url: str
    num_in_flight: int = 0
    num_failures: int = 0  # in a row
    num_ejections: int = 0  # in a row
    ejected_until_s: float = 0.0
    probing: bool = False


class EndpointPool:
    """Least requests in flight first; the order given breaks ties."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.endpoints = [Endpoint(url) for url in urls]
        self._clock = clock

    def __len__(self) -> int:
        return len(self.endpoints)

    @property
    def num_in_flight(self) -> int:
        return sum(endpoint.num_in_flight for endpoint in self.endpoints)

    def pick(self, without: Endpoint | None = None) -> Endpoint:
        """The server for the next request. If all are ejected, the one whose time is up first: better than none."""
        now = self._clock()
        if len(self.endpoints) == 1:
            return self.endpoints[0]
        candidates = [endpoint for endpoint in self.endpoints if endpoint is not without] or self.endpoints
        usable = [endpoint for endpoint in candidates if self._is_usable(endpoint, now)]
        if usable:
            return min(usable, key=lambda endpoint: (endpoint.num_in_flight, endpoint.num_failures))
        return min(candidates, key=lambda endpoint: endpoint.ejected_until_s)

    def use(self, endpoint: Endpoint) -> AbstractContextManager[None]:
        """A request in flight there."""
        return _Use(endpoint)

    def succeeded(self, endpoint: Endpoint) -> None:
        endpoint.num_failures = endpoint.num_ejections = 0
        endpoint.ejected_until_s = 0.0

    def failed(self, endpoint: Endpoint, *, unreachable: bool) -> float:
        """Seconds that it is left alone for, 0.0 for none. `unreachable`: nobody listens there: no second look."""
        endpoint.num_failures += 1
        if unreachable or endpoint.num_failures >= EJECT_AFTER or endpoint.ejected_until_s > 0.0:
            wait_s: float = min(EJECT_S * 2**endpoint.num_ejections, MAX_EJECT_S)
            endpoint.ejected_until_s = self._clock() + wait_s
            endpoint.num_ejections += 1
            return wait_s
        return 0.0

    def _is_usable(self, endpoint: Endpoint, now: float) -> bool:
        if endpoint.ejected_until_s == 0.0:
            return True
        return now >= endpoint.ejected_until_s and not endpoint.probing


class _Use(AbstractContextManager[None]):
    """A class, since a generator takes three times as long, and there is one with every request."""

    __slots__ = ("_endpoint", "_probing")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._probing = endpoint.ejected_until_s > 0.0

    def __enter__(self) -> None:
        self._endpoint.num_in_flight += 1
        if self._probing:
            self._endpoint.probing = True

    def __exit__(self, *_: object) -> None:
        self._endpoint.num_in_flight -= 1
        if self._probing:
            self._endpoint.probing = False
