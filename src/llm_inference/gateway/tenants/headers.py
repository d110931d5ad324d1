"""The `x-ratelimit-*` headers, spelt as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence

from llm_inference.gateway.tenants.limits import Charge, State

NAMES = tuple(
    f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)

_NAMES_BY_UNIT = {
    unit: tuple(name.encode() for name in NAMES if name.endswith(unit)) for unit in ("requests", "tokens")
}


def limit_headers(charges: Sequence[Charge], states: Sequence[State]) -> tuple[tuple[bytes, bytes], ...]:
    """Of the limits per minute, for requests and tokens each the one of which the least is left."""
    least: dict[str, tuple[int, int, float]] = {}
    for charge, state in zip(charges, states, strict=True):
        if charge.kind == "rate":
            rate = (state.remaining, charge.limit, state.reset_s)
            known = least.get(charge.unit)
            if known is None or rate < known:
                least[charge.unit] = rate
    found: list[tuple[bytes, bytes]] = []
    for unit, names in _NAMES_BY_UNIT.items():
        if unit in least:
            remaining, limit, reset_s = least[unit]
            values = (b"%d" % limit, b"%d" % remaining, duration(reset_s).encode())
            found += zip(names, values, strict=True)
    return tuple(found)


def duration(seconds: float) -> str:
    """Such as "20ms", "1.5s" and "6m0s"."""
    milliseconds = max(0, -(-int(seconds * 1_000_000) // 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{text}" if minutes else text
