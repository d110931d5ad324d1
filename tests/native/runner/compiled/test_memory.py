"""A region hands out what was put into it, and holds as long as any part is held."""

from __future__ import annotations

import gc

import pytest
import torch

from llm_inference.native.runner.compiled.memory import Region


def test_parts_keep_their_values_at_aligned_addresses() -> None:
    tensors = [torch.arange(n, dtype=kind) for n, kind in ((3, torch.float32), (100, torch.uint8), (7, torch.float16))]
    region = Region(64 + 128 + 64)
    parts = [region.put(tensor) for tensor in tensors]
    del region
    gc.collect()
    for part, tensor in zip(parts, tensors, strict=True):
        assert part.data_ptr() % 64 == 0
        assert torch.equal(part, tensor)


def test_what_does_not_fit_is_a_mistake_of_the_caller() -> None:
    region = Region(64)
    with pytest.raises(AssertionError, match="full"):
        region.put(torch.zeros(3 << 20, dtype=torch.uint8))
