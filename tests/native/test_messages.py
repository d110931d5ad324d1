"""Messages survive msgpack unchanged."""

from __future__ import annotations

import msgspec

from llm_inference.native.messages import SequenceOutput
from llm_inference.native.request import SampledToken


def test_a_sequence_output_survives_msgpack() -> None:
    token = SampledToken(token_id=7, logprob=-0.25, top=((7, -0.25), (9, -3.0)))
    output = SequenceOutput(
        request_id="r", index=2, tokens=(token,), finish_reason="stop", stop_reason=7, num_cached_tokens=16,
        first_scheduled_s=1.5, first_token_s=2.5,
    )  # fmt: skip
    packed = msgspec.msgpack.encode(output)
    assert msgspec.msgpack.decode(packed, type=SequenceOutput) == output
