"""What tokens cost, in whatever currency the operator thinks in."""

from __future__ import annotations

from dataclasses import dataclass

from llm_inference.gateway.tenants.limits import NANO

_PER_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """For a million tokens each. `cached`: prompt tokens found in the prefix cache; None: as the others."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None

    def nanos(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
        """The whole, in billionths. `cached_tokens` are a part of `prompt_tokens`, whatever an engine says."""
        cached_tokens = min(cached_tokens, prompt_tokens)
        cached = self.input if self.cached is None else self.cached
        whole = (prompt_tokens - cached_tokens) * self.input + cached_tokens * cached + completion_tokens * self.output
        return round(whole * NANO / _PER_TOKENS)

    def of(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        return self.nanos(prompt_tokens, completion_tokens, cached_tokens) / NANO


FREE = Price()
