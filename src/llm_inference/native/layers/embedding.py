"""The table of token vectors, and the output head that may share it."""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F

from llm_inference.errors import SourceError
from llm_inference.native.layers.kernels import DenseKernel, LinearKernel, make_kernel, tensor_bytes
from llm_inference.native.layers.linear import Placement
from llm_inference.native.layers.weights import WeightSlot

logger = logging.getLogger(__name__)


class EmbeddingAndHead:
    """Token ids to vectors at one end, vectors to logits at the other. Never quantized: both decide quality.

    Tied (one matrix for both) follows the checkpoint, not the flag alone, as transformers does: a head tensor that
    differs from the embedding is kept apart even if the configuration says tied, and either tensor alone serves both.
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, tied: bool, placement: Placement) -> None:
        self._shape = (vocab_size, hidden_size)
        self._tied = tied
        self._placement = placement
        self._table: torch.Tensor | None = None
        self._head_weight: torch.Tensor | None = None
        self._head: LinearKernel | None = None
        self._is_shared = False  # the head multiplies by the table itself

    @property
    def num_bytes(self) -> int:
        assert self._head is not None
        return self._head.num_bytes + (0 if self._is_shared else tensor_bytes(self._table))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """`[tokens]` → `[tokens, hidden]` in the model's dtype."""
        assert self._table is not None
        return F.embedding(token_ids, self._table).to(self._placement.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, hidden]` → float32 `[rows, vocab]`."""
        assert self._head is not None
        return self._head(hidden).float()

    def slots(self, embedding_name: str, head_name: str) -> dict[str, WeightSlot]:
        return {
            embedding_name: WeightSlot(self._shape, self._store_table),
            head_name: WeightSlot(self._shape, self._store_head),
        }

    def finish(self) -> None:
        """After the last tensor: tie, and build the head's kernel. Raises `SourceError` if neither tensor came."""
        placement = self._placement
        if self._table is None:
            self._table = self._head_weight
        if self._table is None:
            raise SourceError("the weights lack both the embedding and the output head; fetch the model again")
        weight = self._head_weight
        if self._tied and weight is not None and weight is not self._table:
            if torch.equal(weight, self._table):
                weight = None
            else:
                logger.warning(
                    "the configuration ties the output head to the embedding, but the checkpoint holds two "
                    "different matrices; both are used as they are"
                )
        if weight is None or weight is self._table:
            weight = self._table
        dense = weight.to(placement.device, placement.dtype)
        self._head = make_kernel(dense, None)
        self._is_shared = dense is self._table and isinstance(self._head, DenseKernel)
        self._head_weight = None

    def _store_table(self, tensor: torch.Tensor) -> None:
        self._table = self._resident(tensor)

    def _store_head(self, tensor: torch.Tensor) -> None:
        self._head_weight = self._resident(tensor)

    def _resident(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of its own (`tensor` may be a view of a mapped file), never wider than the checkpoint's: where the
        head is packed for a CPU this table is a second copy, and a half-precision one widens rows without loss."""
        device, dtype = self._placement.device, self._placement.dtype
        if device.type == "cpu" and tensor.element_size() < dtype.itemsize and tensor.is_floating_point():
            return tensor.clone()
        return tensor.to(device=device, dtype=dtype, copy=True)
