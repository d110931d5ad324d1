"""What a decoder or an encoder must offer to be loaded and run. A custom architecture implements one, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch

from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.base import AttentionShape, AttentionStep
from llm_inference.native.layers.linear import Placement
from llm_inference.native.layers.weights import WeightSlot


class CausalLM(Protocol):
    """A decoder-only language model. Its class is called with `(spec, config, placement)`, see `ModelFactory`."""

    @property
    def placement(self) -> Placement: ...

    @property
    def vocab_size(self) -> int:
        """Columns of the logits, padding of the vocabulary included."""
        ...

    @property
    def attention_shape(self) -> AttentionShape: ...

    @property
    def preferred_rows(self) -> int:
        """A step with fewer token rows is not cheaper than one with this many; the runner pads up to it."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory of the weights as they are held after loading."""
        ...

    def slots(self) -> dict[str, WeightSlot]:
        """Every tensor of the checkpoint by name. A name in `optional()` may be missing from it."""
        ...

    def optional(self) -> frozenset[str]: ...

    def finish(self) -> None:
        """Called once, after the last slot was filled."""
        ...

    def forward(self, token_ids: torch.Tensor, step: AttentionStep) -> torch.Tensor:
        """`[rows]` int64 → normalised hidden states `[rows, hidden]`. No synchronisation with the device inside."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` → float32 `[rows, vocab_size]`."""
        ...


#: From a function to one that does the same, faster from the second call on.
Compiler: TypeAlias = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]


@runtime_checkable
class CompilableLM(Protocol):
    """Optional power of a `CausalLM`: the parts between its attentions can be compiled."""

    def compile_layers(self, compiler: Compiler) -> None:
        """Once, after `finish`, before the first `forward`. The functions given away touch no cache."""
        ...


class Encoder(Protocol):
    """A model whose tokens all see each other: no cache, no generation, hidden states alone."""

    @property
    def placement(self) -> Placement: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Memory of the weights as they are held after loading."""
        ...

    def tensor_name(self, name: str) -> str | None:
        """A checkpoint's name for a tensor → the slot's; None for one that is known and of no use here."""
        ...

    def slots(self) -> dict[str, WeightSlot]: ...

    def optional(self) -> frozenset[str]: ...

    def finish(self) -> None:
        """Called once, after the last slot was filled."""
        ...

    def forward(self, token_ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """`[rows]` int64, the inputs one after the other, shortest first → hidden states `[rows, hidden_size]`."""
        ...


class EncoderFactory(Protocol):
    """As `ModelFactory`, of encoders."""

    def __call__(self, spec: ModelSpec, config: Mapping[str, Any], placement: Placement) -> Encoder: ...


class ModelFactory(Protocol):
    """`config` is config.json as it is, for keys that `spec` does not carry.

    Raises `UnsupportedModelError` if it holds something that would change the result and is not implemented.
    """

    def __call__(self, spec: ModelSpec, config: Mapping[str, Any], placement: Placement) -> CausalLM: ...
