"""Timelines that a test can work out by hand."""

from __future__ import annotations

from typing import Any

from llm_inference.tools.bench.timeline import Arrival, Failure, Timeline


def timeline(*arrivals: tuple[float, int], sent_s: float = 0.0, **fields: Any) -> Timeline:
    """A finished request with these (time, tokens); ends with the last of them."""
    values: dict[str, Any] = {
        "scheduled_s": sent_s,
        "ended_s": arrivals[-1][0] if arrivals else sent_s,
        "output_tokens": sum(count for _, count in arrivals),
        "counting": "usage",
        "usage_told": True,
        "finish_reason": "length",
        "input_tokens": 10,
    }
    return Timeline(sent_s=sent_s, arrivals=tuple(Arrival(*one) for one in arrivals), **{**values, **fields})


def failed(kind: str, detail: str = "said so", **fields: Any) -> Timeline:
    return timeline(failure=Failure(kind, detail), input_tokens=None, usage_told=False, **fields)
