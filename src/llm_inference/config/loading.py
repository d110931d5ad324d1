"""The configuration of loading models when they are asked for. What it means: `engine/held.py`, `serve/loader.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from llm_inference.config.section import Section
from llm_inference.config.values import ByteSize

if TYPE_CHECKING:
    from llm_inference.config.schema import ModelConfig


class LoadingConfig(Section):
    """`loading:` of models with `lazy: true`, and the memory that all models share."""

    memory_budget: ByteSize | None = Field(
        default=None, description="Sum of `memory` of all loaded models (bytes, or such as 8GiB); null: not bounded."
    )
    max_wait_s: float = Field(
        default=120.0, gt=0, le=3600, description="Longest wait of a request for its model; then 503."
    )
    retry_s: float = Field(
        default=5.0, ge=0, le=3600, description="After a failed load: requests are refused at once for so long."
    )


def check_budget(loading: LoadingConfig, models: Sequence[ModelConfig]) -> None:
    """Raises `ValueError` where a budget cannot be kept."""
    budget = loading.memory_budget
    if budget is None:
        return
    ours = [model for model in models if model.url is None]
    for model in ours:
        if model.memory is None:
            raise ValueError(f'`loading.memory_budget` needs the `memory` of each model; "{model.deployment}" has none')
        if model.memory > budget:
            raise ValueError(f'`memory` of "{model.deployment}" alone is more than `loading.memory_budget`')
    always = sum(model.memory * model.replicas for model in ours if model.memory is not None and not model.lazy)
    largest = max((model.memory for model in ours if model.memory is not None and model.lazy), default=0)
    if always + largest > budget:
        raise ValueError(
            f"`loading.memory_budget` is {budget} bytes; models without `lazy` take {always} of them, and the largest "
            f"with it {largest} more"
        )
