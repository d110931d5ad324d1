"""Sequences as the sampler sees them."""

from __future__ import annotations

from typing import Any

from llm_inference.engine.types import GenerationDefaults, SamplingParams
from llm_inference.native.request import CoreRequest, Sequence


def make_sequence(
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    *,
    index: int = 0,
    eos_token_ids: tuple[int, ...] = (),
    request_id: str = "r",
    **sampling: Any,
) -> Sequence:
    prompt = prompt if prompt is not None else [0]
    params = SamplingParams(**{"max_tokens": 100} | sampling).resolve(GenerationDefaults())
    request = CoreRequest(
        request_id=request_id, prompt_token_ids=tuple(prompt), sampling=params, eos_token_ids=eos_token_ids
    )
    return Sequence(
        request=request,
        index=index,
        token_ids=[*prompt, *(output or [])],
        arrival_s=0.0,
        num_prompt_tokens=len(prompt),
    )
