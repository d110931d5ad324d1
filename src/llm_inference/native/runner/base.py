"""The runner's contract: execute a batch of scheduled tokens, return logits for the wanted positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from llm_inference.native.batch import ModelInput

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
