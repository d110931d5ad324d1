"""Stop strings in a growing text: what may be sent now, what must wait, where it ends.

The match that is completed first wins; of several completed by the same character, the longest. So the result is
that of reading character by character, however the text was cut into pieces. Held back is only the longest suffix
that is the beginning of a stop string. Knows nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """One sequence's stop strings. `include_in_output`: the matched string itself is part of the text.

    Empty strings are ignored. Work per character is constant for each stop string (Knuth, Morris, Pratt 1977).
    """

    __slots__ = ("_failure", "_first", "_held", "_include", "_matched", "_state", "_stops")

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._include = include_in_output
        self._failure = [_failure_table(stop) for stop in self._stops]
        self._first = frozenset(stop[0] for stop in self._stops)
        #: For each stop string: how many of its characters the text so far ends with.
        self._state = [0] * len(self._stops)
        self._held = ""
        self._matched: str | None = None

    def add(self, text: str) -> tuple[str, str | None]:
        """(text safe to emit now, the stop string that ended it or None).

        After a match nothing more comes out: `("", matched)`.
        """
        if self._matched is not None:
            return "", self._matched
        if not self._held and self._first.isdisjoint(text):
            return text, None
        stops, state, tables = self._stops, self._state, self._failure
        for position, character in enumerate(text):
            longest = -1
            for i, stop in enumerate(stops):
                size = state[i]
                while size and stop[size] != character:
                    size = tables[i][size - 1]
                if stop[size] == character:
                    size += 1
                state[i] = size
                if size == len(stop) and (longest < 0 or size > len(stops[longest])):
                    longest = i
            if longest >= 0:
                whole = self._held + text[: position + 1]
                self._held, self._matched = "", stops[longest]
                return (whole if self._include else whole[: -len(self._matched)]), self._matched
        whole = self._held + text
        keep = max(state, default=0)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep], None

    def flush(self) -> str:
        """What was held back, when the text ends without a match."""
        held, self._held = self._held, ""
        self._state = [0] * len(self._stops)
        return held


def _failure_table(stop: str) -> list[int]:
    """`table[i]`: length of the longest proper prefix of `stop[:i + 1]` that is also its suffix."""
    table = [0] * len(stop)
    size = 0
    for i in range(1, len(stop)):
        while size and stop[i] != stop[size]:
            size = table[size - 1]
        if stop[i] == stop[size]:
            size += 1
        table[i] = size
    return table
