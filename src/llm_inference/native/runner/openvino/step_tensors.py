"""A step's flat arrays as input tensors of a request, in memory that is allocated once and grows when it must."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from llm_inference.native.batch import ModelInput

_TYPES: Final[dict[str, type[np.signedinteger[Any]]]] = {
    "token_ids": np.int64,
    "positions": np.int64,
    "past_lens": np.int32,
    "query_begins": np.int32,
    "block_ids": np.int32,
    "block_begins": np.int32,
    "rows": np.int64,
}


class StepTensors:
    """See `graph.Inputs` for the arrays."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._buffers: dict[str, npt.NDArray[Any]] = {name: np.empty(256, kind) for name, kind in _TYPES.items()}
        self._max_context_len = np.empty((), np.int32)
        self._num_logits = np.empty(1, np.int64)
        for name, array in (("max_context_len", self._max_context_len), ("num_logits", self._num_logits)):
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def fill(self, step: ModelInput) -> None:
        """The request then computes `step`: its logits, and after them its hidden states."""
        self._set("token_ids", step.token_ids)
        self._set("positions", step.positions)
        lengths = zip(step.context_lens, step.query_lens, strict=True)
        self._set("past_lens", [context - query for context, query in lengths])
        self._set("query_begins", list(accumulate(step.query_lens, initial=0)))
        self._set("block_ids", list(chain.from_iterable(step.block_tables)))
        self._set("block_begins", list(accumulate(map(len, step.block_tables), initial=0)))
        self._set("rows", [*step.logits_indices, *step.hidden_indices])
        self._max_context_len[...] = max(step.context_lens)
        self._num_logits[0] = len(step.logits_indices)

    def _set(self, name: str, values: Sequence[int]) -> None:
        size = len(values)
        buffer = self._buffers[name]
        if size > len(buffer):
            buffer = self._buffers[name] = np.empty(2 * size, buffer.dtype)
        view = buffer[:size]
        view[:] = values
        self._request.set_tensor(name, ov.Tensor(view, shared_memory=True))
