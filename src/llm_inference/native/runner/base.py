"""The runner's contract: execute a batch of scheduled tokens, return logits for the wanted positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from llm_inference.native.batch import ModelInput
from llm_inference.telemetry.stages import Stages

if TYPE_CHECKING:
    import torch


class Runner(Protocol):
    """Owns weights and KV tensors of one device. Knows nothing of requests, scheduling or sampling."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one KV block over all layers, keys and values."""
        ...

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Once, before the first `execute`. Raises `OutOfMemoryError`."""

    def execute(self, model_input: ModelInput) -> torch.Tensor:
        """Run one step.

        Mutates the KV cache: first `block_copies`, then one slot per token. Returns float32 logits
        `[len(logits_indices), vocab_size]`, on the device of the model, in that order. The caller may change them; the
        next step may overwrite them, so that whoever keeps them copies them.
        """
        ...

    def execute_with_hidden(self, model_input: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        """The same step, and float32 hidden states `[len(hidden_indices), hidden_size]`, after the last norm."""
        ...


@runtime_checkable
class ObservedRunner(Protocol):
    """Optional power: a runner that tells the stages of a step."""

    def observe(self, stages: Stages) -> None:
        """From the next step on. The stages are "attention", and "library" for what no operator of torch computes."""

    def node_seconds(self) -> Mapping[str, float]:
        """Of all steps observed so far, by part, as the runner's own library clocks them; empty where it does not."""
        ...
