"""The `x-ratelimit-*` headers, spelt as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_inference.gateway.tenants.limits import Charge, State

NAMES = tuple(
    f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)


def limit_headers(charges: Sequence[Charge], states: Sequence[State]) -> tuple[tuple[bytes, bytes], ...]:
    """Of the limits per minute, for requests and tokens each the one of which the least is left."""
    found: list[tuple[bytes, bytes]] = []
    for unit in ("requests", "tokens"):
        rates = [
            (state.remaining, charge.limit, state.reset_s)
            for charge, state in zip(charges, states, strict=True)
            if charge.kind == "rate" and charge.unit == unit
        ]
        if rates:
            remaining, limit, reset_s = min(rates)
            values: Iterable[str] = (str(limit), str(remaining), duration(reset_s))
            for what, value in zip(("limit", "remaining", "reset"), values, strict=True):
                found.append((f"x-ratelimit-{what}-{unit}".encode(), value.encode()))
    return tuple(found)


def duration(seconds: float) -> str:
    """Such as "20ms", "1.5s" and "6m0s"."""
    milliseconds = max(0, -(-int(seconds * 1_000_000) // 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{text}" if minutes else text
