"""The reference runner: a model and its paged KV cache on one device, executed by torch."""

from __future__ import annotations

import torch

from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.attention.torch_attention import TorchAttention
from llm_inference.native.batch import ModelInput
from llm_inference.native.models.base import CausalLM


def round_up_rows(num_rows: int) -> int:
    """One of a few sizes, at most a quarter larger.

    oneDNN keeps a program for each number of rows and layer shape that it has met, up to a thousand of them, of about
    a megabyte each; and making one takes a millisecond. So a CPU computes steps of some 45 sizes, not of any size.
    """
    for limit, grain in ((16, 1), (64, 4), (256, 16)):
        if num_rows <= limit:
            return -(-num_rows // grain) * grain
    return -(-num_rows // 32) * 32


class TorchRunner:
    """See `Runner`. One owner calls everything, from one thread."""

    def __init__(self, model: CausalLM, *, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        self._device = model.placement.device
        self._attention: TorchAttention | None = None

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self._model.num_bytes

    @property
    def kv_block_bytes(self) -> int:
        return self._model.attention_shape.kv_bytes(self._block_size, self._model.placement.dtype)

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Once, before the first `execute`. Raises `OutOfMemoryError`."""
        assert self._attention is None, "the KV cache is allocated once"
        shape, dtype = self._model.attention_shape, self._model.placement.dtype
        cache = PagedKV(shape, num_blocks, self._block_size, dtype, self._device)
        self._attention = TorchAttention(shape, cache, dtype, self._device)

    @torch.inference_mode()
    def execute(self, model_input: ModelInput) -> torch.Tensor:
        """See `Runner.execute`."""
        return self._logits(self._forward(model_input), model_input.logits_indices)

    @torch.inference_mode()
    def execute_with_hidden(self, model_input: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Runner.execute_with_hidden`."""
        hidden = self._forward(model_input)
        wanted = torch.tensor(model_input.hidden_indices, dtype=torch.int64).to(self._device)
        return self._logits(hidden, model_input.logits_indices), hidden.index_select(0, wanted).float()

    def _forward(self, model_input: ModelInput) -> torch.Tensor:
        """`[rows, hidden_size]` of the scheduled tokens, and of padding after them."""
        assert self._attention is not None, "allocate_kv_cache comes before execute"
        self._attention.cache.begin_step(model_input)
        num_rows = self._num_rows(len(model_input.token_ids))
        step = self._attention.begin(model_input, num_rows)
        return self._model.forward(self._padded(model_input.token_ids, num_rows), step)

    def _logits(self, hidden: torch.Tensor, wanted: list[int]) -> torch.Tensor:
        num_wanted = len(wanted)
        if not num_wanted:
            return torch.empty(0, self.vocab_size, device=self._device)
        num_rows = self._num_rows(num_wanted)
        return self._model.logits(hidden.index_select(0, self._padded(wanted, num_rows)))[:num_wanted]

    def _num_rows(self, num_wanted: int) -> int:
        num_rows = max(num_wanted, self._model.preferred_rows)
        return round_up_rows(num_rows) if self._device.type == "cpu" else num_rows

    def _padded(self, values: list[int], size: int) -> torch.Tensor:
        """`[size]` int64 on the device: `values`, then zeros."""
        tensor = torch.zeros(size, dtype=torch.int64)
        tensor[: len(values)] = torch.tensor(values)
        return tensor.to(self._device)
