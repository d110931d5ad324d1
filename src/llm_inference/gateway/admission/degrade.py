"""Shorter answers while many wait, where the operator has said so, and how the client is told."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from llm_inference.engine.types import GenerateRequest
from llm_inference.gateway.admission.rules import DegradeRule

HEADER = b"x-degraded"


def limit_of(rules: Sequence[DegradeRule], filling: float) -> int | None:
    """The least `max_tokens` of the rules that hold at this filling of the queue; None: no rule does."""
    return min((rule.max_tokens for rule in rules if filling > rule.when_queue_above), default=None)


def degraded(request: GenerateRequest, max_tokens: int) -> GenerateRequest:
    """`request` with answers of at most `max_tokens`; itself where it asks for no more."""
    sampling = request.sampling
    if sampling.max_tokens is not None and sampling.max_tokens <= max_tokens:
        return request
    shorter = msgspec.structs.replace(sampling, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens))
    return msgspec.structs.replace(request, sampling=shorter)


def header_of(max_tokens: int) -> tuple[bytes, bytes]:
    return HEADER, f"max_tokens={max_tokens}".encode()
