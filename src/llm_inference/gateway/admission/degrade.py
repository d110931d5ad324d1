"""Shorter answers or lower tiers while many wait, where the operator has said so, and how the client is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from llm_inference.engine.types import GenerateRequest
from llm_inference.gateway.admission.rules import DegradeRule

HEADER = b"x-degraded"


@runtime_checkable
class HasTiers(Protocol):
    """What a request's engine can do where its model has tiers."""

    def lower(self) -> str:
        """Have the request served by the next lower tier. Its name; "": there is none, or it must not be."""
        ...


def limit_of(rules: Sequence[DegradeRule], filling: float) -> int | None:
    """The least `max_tokens` of the rules that hold at this filling of the queue; None: no rule does."""
    holding = (rule.max_tokens for rule in rules if filling > rule.when_queue_above)
    return min((limit for limit in holding if limit is not None), default=None)


def lowers(rules: Sequence[DegradeRule], filling: float) -> bool:
    """Whether a rule that holds at this filling gives requests to the next lower tier."""
    return any(rule.lower_tier and filling > rule.when_queue_above for rule in rules)


def degraded(request: GenerateRequest, max_tokens: int) -> GenerateRequest:
    """`request` with answers of at most `max_tokens`; itself where it asks for no more."""
    sampling = request.sampling
    if sampling.max_tokens is not None and sampling.max_tokens <= max_tokens:
        return request
    shorter = msgspec.structs.replace(sampling, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens))
    return msgspec.structs.replace(request, sampling=shorter)


def header_of(max_tokens: int | None, tier: str = "") -> tuple[bytes, bytes]:
    """What was done: at least one of the two."""
    said = [f"max_tokens={max_tokens}"] if max_tokens is not None else []
    return HEADER, ", ".join([*said, f"tier={tier}"] if tier else said).encode()
