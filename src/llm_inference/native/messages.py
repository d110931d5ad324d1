"""What the core says to the front, one msgspec struct per message. No tensors, no text."""

from __future__ import annotations

import msgspec

from llm_inference.engine.types import FinishReason
from llm_inference.native.request import SampledToken


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step brought for one choice. Each choice that is not aborted gets exactly one with a `finish_reason`.

    Times are on the clock whose readings the scheduler was given (`now`), in seconds.
    """

    request_id: str
    index: int
    tokens: tuple[SampledToken, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    #: Where a vector was asked for, with the finish reason: little-endian float32.
    vector: bytes | None = None
