"""What followed the last few tokens of a list where they stood before. No requests, no policy, no tensors.

… the quick brown fox … the quick         the end of the list: its last tokens
      └───────┘ ▲           └───────┘     stood here before, so what came next there is offered
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: How many earlier places are compared, from the latest. In a list of one repeated token all places match.
_MAX_PLACES: Final = 8


class NgramIndex:
    """Of one list that only grows. Takes in what is new when it is asked, each token once."""

    __slots__ = ("_earlier", "_latest", "_max", "_min")

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        """At least `min_ngram` last tokens must have stood before; the longest match up to `max_ngram` is taken."""
        assert 1 <= min_ngram <= max_ngram
        self._min, self._max = min_ngram, max_ngram
        self._latest: dict[tuple[int, ...], int] = {}  # n-gram → where it last ended (the place of the next token)
        self._earlier: list[int] = []  # entry i: where the n-gram that ends at `i + min` had ended before; -1: nowhere

    def continuation(self, token_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """`num_tokens` tokens that may come next, or () if the last ones never stood before.

        A match that reaches the end of the list goes on in its own copy: a loop is continued as a loop.
        """
        size = len(token_ids)
        for end in range(self._min + len(self._earlier), size):
            key = tuple(token_ids[end - self._min : end])
            self._earlier.append(self._latest.get(key, -1))
            self._latest[key] = end
        if size <= self._min:
            return ()
        place = self._latest.get(tuple(token_ids[size - self._min :]), -1)
        best, best_length = place, 0
        for _ in range(_MAX_PLACES):
            if place < 0:
                break
            length = self._match_length(token_ids, place)
            if length > best_length:
                best, best_length = place, length
            if length == self._max:
                break
            place = self._earlier[place - self._min]
        if best < 0:
            return ()
        found = list(token_ids[best : best + num_tokens])
        for _ in range(num_tokens - len(found)):
            found.append(found[len(found) - (size - best)])
        return tuple(found)

    def _match_length(self, token_ids: Sequence[int], place: int) -> int:
        """How many tokens before `place` equal the last ones of the list, up to the maximum."""
        size = len(token_ids)
        length = self._min
        while length < self._max and length < place and token_ids[place - length - 1] == token_ids[size - length - 1]:
            length += 1
        return length
