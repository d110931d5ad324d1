"""A step's flat arrays as `llm_step`, in memory that is allocated once and grows when it must."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from llm_inference.native.batch import ModelInput
from llm_inference.native.runner.compiled.library import Step

_ARRAYS: Final = ("token_ids", "positions", "query_begins", "block_begins", "block_ids", "rows")


class StepArrays:
    """`step` describes what `fill` was last called with; `logits` and `hidden` are what it is computed into."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        self.step = Step()
        self._buffers: dict[str, npt.NDArray[np.int32]] = {}
        for name in _ARRAYS:
            self._keep(name, np.empty(256, np.int32))
        self._logits = torch.empty(0, vocab_size)
        self._hidden = torch.empty(0, hidden_size)

    def fill(self, step: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 `[len(logits_indices), vocab_size]` and `[len(hidden_indices), hidden_size]`, to be computed."""
        self._set("token_ids", step.token_ids)
        self._set("positions", step.positions)
        self._set("query_begins", list(accumulate(step.query_lens, initial=0)))
        self._set("block_begins", list(accumulate(map(len, step.block_tables), initial=0)))
        self._set("block_ids", list(chain.from_iterable(step.block_tables)))
        self._set("rows", [*step.logits_indices, *step.hidden_indices])
        num_logits, num_hidden = len(step.logits_indices), len(step.hidden_indices)
        self._logits, self._hidden = _grown(self._logits, num_logits), _grown(self._hidden, num_hidden)
        self.step.num_tokens = len(step.token_ids)
        self.step.num_sequences = len(step.query_lens)
        self.step.num_rows = num_logits + num_hidden
        self.step.num_logits = num_logits
        self.step.logits = self._logits.data_ptr()
        self.step.hidden = self._hidden.data_ptr()
        return self._logits[:num_logits], self._hidden[:num_hidden]

    def _set(self, name: str, values: Sequence[int]) -> None:
        size = len(values)
        if size > len(self._buffers[name]):
            self._keep(name, np.empty(2 * size, np.int32))
        self._buffers[name][:size] = values

    def _keep(self, name: str, buffer: npt.NDArray[np.int32]) -> None:
        self._buffers[name] = buffer
        setattr(self.step, name, buffer.ctypes.data)


def _grown(rows: torch.Tensor, needed: int) -> torch.Tensor:
    return rows if len(rows) >= needed else torch.empty(max(needed, 2 * len(rows)), rows.shape[1])
