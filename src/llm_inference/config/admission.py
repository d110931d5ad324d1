"""The configuration of the queue at the door. What it means: `gateway/admission/`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from llm_inference.config.section import Section
from llm_inference.config.values import ListOf

Weight = Annotated[float, Field(gt=0, le=1e6)]


class DegradeConfig(Section):
    """An entry of `admission.degrade`."""

    when_queue_above: float = Field(ge=0, lt=1, description="Filling of the queue above which it holds, 0 to 1.")
    max_tokens: int | None = Field(
        default=None, ge=1, description="Longest answer then; the client is told by x-degraded."
    )
    lower_tier: bool = Field(
        default=False, description="Who named no tier gets the next lower one then; told by x-degraded, too."
    )

    @model_validator(mode="after")
    def _does_something(self) -> DegradeConfig:
        if self.max_tokens is None and not self.lower_tier:
            raise ValueError("says nothing to do: give it `max_tokens`, or `lower_tier: true`")
        return self


class AdmissionConfig(Section):
    """`admission:` who waits for a place, how long, in which order. By default nobody does."""

    max_queue_requests: int = Field(
        default=0, ge=0, le=100_000, description="So many wait when api.max_concurrent_requests run; 0: none, 503."
    )
    max_queue_tokens: int | None = Field(
        default=None, ge=1, description="So many tokens of prompts and longest answers wait; null: not bounded."
    )
    max_wait_s: float = Field(default=10.0, gt=0, le=3600, description="Longest wait; then 503.")
    ageing_s: float = Field(
        default=5.0, gt=0, le=3600, description="For each of these a waiting request's priority is better by one."
    )
    max_kv_cache_usage: float | None = Field(
        default=None, gt=0, le=1, description="From this use of an engine's KV cache on, requests for it wait here."
    )
    shares: dict[str, Weight] = Field(
        default={}, description="Tier: weight. Tiers that wait share the places so; others have 1."
    )
    degrade: ListOf[DegradeConfig] = Field(default=(), description="Shorter answers, or lower tiers, while many wait.")
