"""How one step's prompt tokens are shared out between prompts. Knows neither blocks nor seats nor ranks.

Prompts are offered the budget one after another. One that fits in what is left is taken whole; one that does not takes
half and leaves half to those behind it; what nobody used goes to the first of the long ones.

    budget 256, offers of 4000, 100 and 300 tokens:   128 │ 100 │ 14 │ 14 for newcomers, else for the first

So the first prompt always gets at least half of the budget, and a short one does not wait for all chunks of a long one.
A newcomer shares with long prompts only if it is at most half as long as what is left of the last of them: two equally
long ones side by side would only make the first one late.
"""

from __future__ import annotations

from llm_inference.native.request import Sequence


class PrefillBudget:
    """`offer` in order, then `close`. `rest` is what the next offer can get."""

    def __init__(self, num_tokens: int) -> None:
        self.rest = num_tokens
        self._shares: list[tuple[Sequence, int]] = []
        self._first_long: int | None = None  # its place in `_shares`
        self._last_long_need: int | None = None

    def is_worth(self, num_to_compute: int) -> bool:
        """Whether a newcomer of that length should share the budget with the long prompts that are in it."""
        return self._last_long_need is None or 2 * num_to_compute <= self._last_long_need

    def offer(self, sequence: Sequence) -> None:
        """Take a share for `sequence`: all it needs, or half of the rest, or nothing if nothing is left."""
        need = sequence.num_uncomputed_tokens
        share = need
        if need > self.rest:
            share = -(-self.rest // 2)
            if self._first_long is None:
                self._first_long = len(self._shares)
            self._last_long_need = need
        self.rest -= share
        self._shares.append((sequence, share))

    def close(self) -> list[tuple[Sequence, int]]:
        """(sequence, number of tokens) of every share that is not empty; what is left goes to the first long one."""
        if self._first_long is not None:
            sequence, share = self._shares[self._first_long]
            self._shares[self._first_long] = (sequence, share + self.rest)
            self.rest = 0
        return [(sequence, share) for sequence, share in self._shares if share > 0]
