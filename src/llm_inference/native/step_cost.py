"""What a decode step costs by its number of tokens, learned from the steps themselves. Knows no scheduler, no clock.

    seconds ≈ base + slope · tokens

Least squares over the recent steps, older ones weighing less. Where all steps were alike the slope cannot be seen; it
is then a guess, which observations of different sizes push aside (ridge regression towards that guess).
"""

from __future__ import annotations

from typing import Final

#: What an observation weighs after each later one.
_DECAY: Final = 0.98
#: The guess: this many more tokens double the time of a step of one.
_TOKENS_THAT_DOUBLE: Final = 16.0
#: What the guess weighs: as much as observations with this variance of their number of tokens.
_GUESS_WEIGHT: Final = 1.0
#: A step that took longer than this many times the expected one is taken for so long: something else ran.
_MAX_SURPRISE: Final = 4.0


class StepCost:
    """`observe` each step of decodes alone, ask `estimate`."""

    __slots__ = ("_n", "_nn", "_nt", "_t", "_weight")

    def __init__(self) -> None:
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` took `seconds`."""
        if self._weight >= 1.0:
            seconds = min(seconds, _MAX_SURPRISE * self.estimate(num_tokens)[0])
        seconds = max(seconds, 0.0)
        self._weight = _DECAY * self._weight + 1.0
        self._n = _DECAY * self._n + num_tokens
        self._t = _DECAY * self._t + seconds
        self._nn = _DECAY * self._nn + num_tokens * num_tokens
        self._nt = _DECAY * self._nt + num_tokens * seconds

    def estimate(self, num_tokens: int) -> tuple[float, float]:
        """Seconds of a step of `num_tokens`, and of each token more. Both are 0 before the first observation."""
        if not self._weight:
            return 0.0, 0.0
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        variance = max(self._nn / self._weight - mean_n * mean_n, 0.0)
        covariance = self._nt / self._weight - mean_n * mean_t
        guess = mean_t / (mean_n + _TOKENS_THAT_DOUBLE - 1.0)
        slope = max((covariance + _GUESS_WEIGHT * guess) / (variance + _GUESS_WEIGHT), 0.0)
        return max(mean_t + slope * (num_tokens - mean_n), slope * num_tokens), slope
