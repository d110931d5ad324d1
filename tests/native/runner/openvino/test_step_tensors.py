"""What a request is given for a step, and that it may be of any size after any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("openvino", reason="the package openvino is not installed (extra `cpu`)")

from llm_inference.native.batch import ModelInput
from llm_inference.native.runner.openvino.step_tensors import StepTensors


class Request:
    """Remembers what was set."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def set_tensor(self, name: str, tensor: Any) -> None:
        self.tensors[name] = tensor

    def values(self, name: str) -> list[int]:
        return list(self.tensors[name].data.tolist())


def make_step(num_tokens: int) -> ModelInput:
    """A decode at position 33, then a prompt of `num_tokens` tokens."""
    return ModelInput(
        token_ids=[7, *range(num_tokens)],
        positions=[33, *range(num_tokens)],
        slot_mapping=[],
        query_lens=[1, num_tokens],
        context_lens=[34, num_tokens],
        block_tables=[[5, 3], list(range(10, 10 - (-num_tokens // 32)))],
        logits_indices=[0, num_tokens],
        block_copies=[],
        num_decodes=1,
        hidden_indices=[2],
    )


def test_a_step() -> None:
    request = Request()
    StepTensors(request).fill(make_step(3))
    assert request.values("token_ids") == [7, 0, 1, 2]
    assert request.values("positions") == [33, 0, 1, 2]
    assert request.values("past_lens") == [33, 0]
    assert request.values("query_begins") == [0, 1, 4]
    assert request.values("block_ids") == [5, 3, 10]
    assert request.values("block_begins") == [0, 2, 3]
    assert request.values("rows") == [0, 3, 2]
    assert request.values("num_logits") == [2]
    assert request.tensors["max_context_len"].data == np.int32(34)
    assert list(request.tensors["max_context_len"].shape) == []


def test_sizes_may_grow_and_shrink() -> None:
    request = Request()
    tensors = StepTensors(request)
    for size in (3, 1000, 2, 5000, 1):
        tensors.fill(make_step(size))
        assert request.values("token_ids") == [7, *range(size)]
        assert len(request.values("positions")) == size + 1
