"""How long prompts and answers are: a distribution of token counts that a seed makes the same every time.

Knows nothing of tokenizers; a length is a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_inference.errors import ConfigError

_FORMS = "N, LOW:HIGH (uniform) or lognormal:MEAN:STD[:MOST], such as 256, 16:512 or lognormal:300:120:2000"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts. Uniform: from `first` to `second`, both included. Lognormal: mean `first`, standard deviation
    `second` of the lengths themselves (not of their logarithms), cut at `most`. Nothing is shorter than one token.
    """

    kind: Literal["uniform", "lognormal"]
    first: float
    second: float
    most: int | None = None

    @classmethod
    def fixed(cls, length: int) -> Lengths:
        return cls("uniform", length, length)

    @classmethod
    def parse(cls, text: str, name: str = "length") -> Lengths:
        """Read N, LOW:HIGH or lognormal:MEAN:STD[:MOST]. Raises `ConfigError` that calls the option `name`."""
        kind, *rest = text.split(":")
        try:
            if kind == "lognormal":
                mean, std, *most = rest
                lengths = cls("lognormal", float(mean), float(std), *(int(value) for value in most))
            else:
                low, high = (int(value) for value in ((kind, *rest) if rest else (kind, kind)))
                lengths = cls("uniform", low, high)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{name}: {text!r} is no length; write {_FORMS}") from error
        problem = lengths._problem()
        if problem:
            raise ConfigError(f"{name}: {text!r}: {problem}; write {_FORMS}")
        return lengths

    def draw(self, count: int, seed: int, stream: int) -> list[int]:
        """`count` lengths. Different `stream`s of one seed are independent of each other."""
        rng = np.random.default_rng((seed, stream))
        if self.kind == "uniform":
            return [int(value) for value in rng.integers(int(self.first), int(self.second) + 1, size=count)]
        # Moments of the lognormal: mean = exp(mu + s²/2), var = (exp(s²) - 1) · mean².
        variance = math.log1p((self.second / self.first) ** 2)
        values = rng.lognormal(math.log(self.first) - variance / 2, math.sqrt(variance), size=count)
        most = math.inf if self.most is None else self.most
        return [int(min(max(round(value), 1), most)) for value in values.tolist()]

    def __str__(self) -> str:
        if self.kind == "lognormal":
            return f"lognormal:{self.first:g}:{self.second:g}" + ("" if self.most is None else f":{self.most}")
        return f"{self.first:g}" if self.first == self.second else f"{self.first:g}:{self.second:g}"

    def _problem(self) -> str | None:
        if not (math.isfinite(self.first) and math.isfinite(self.second)):
            return "a length is a finite number"
        if self.first < 1 or (self.most is not None and self.most < 1):
            return "a length is at least one token"
        if self.kind == "uniform" and self.second < self.first:
            return "the higher bound is below the lower one"
        if self.kind == "lognormal" and self.second < 0:
            return "a standard deviation is not negative"
        return None
