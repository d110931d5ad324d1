"""When places become free, as observed: the source of Retry-After and of who is refused at once.

While somebody waits, each place that becomes free is taken at once: whoever is in flight came when the last ones left.
So with `num_places` of them the next to leave has been here since the departure that lies so many back, and stays about
as long as the last turnover took. Answers of equal length leave in bursts, a turnover apart; by the average rate alone
one who comes behind a burst would seem to wait little. Where lengths differ it is nearly as good as the rate.
"""

from __future__ import annotations

from collections import deque

#: Departures that are remembered at least, and for how long.
_NUM_REMEMBERED = 64
_WINDOW_S = 30.0
#: With fewer nobody knows.
_MIN_DEPARTURES = 4


class DrainRate:
    """The last departures, of `num_places` places. Times are seconds of the caller's clock.

    Only those count at which somebody could have come in: an idle server's departures are as rare as its visitors.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._times: deque[float] = deque(maxlen=max(_NUM_REMEMBERED, num_places + 1))

    def departed(self, now: float) -> None:
        self._times.append(now)

    def forget(self) -> None:
        """There was room: what was observed before says nothing of the next time that there is none."""
        self._times.clear()

    def per_second(self, now: float) -> float | None:
        """None: not known. A silence since the last departure counts, so that a stuck engine shows."""
        times = self._times
        while times and now - times[0] > _WINDOW_S:
            times.popleft()
        if len(times) < _MIN_DEPARTURES:
            return None
        # n departures are n - 1 intervals; the one that runs counts once it is longer than they were on average.
        between = (times[-1] - times[0]) / (len(times) - 1)
        silent = now - times[-1]
        span = times[-1] - times[0] + (silent if silent > between else 0.0)
        return (len(times) - 1) / max(span, 1e-6)

    def wait_s(self, num_ahead: int, now: float) -> float | None:
        """Until `num_ahead` more have left and one place is free; None: not known."""
        rate = self.per_second(now)
        if rate is None:
            return None
        times, places = self._times, self._num_places
        if len(times) > places:
            turnovers, place = divmod(num_ahead, places)
            turnover_s = times[-1] - times[-1 - places]
            due = times[place - places] + (turnovers + 1) * turnover_s
            if due >= now:  # else it is late, and nobody knows how late
                return due - now
        return (num_ahead + 1) / rate
