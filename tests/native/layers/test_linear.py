"""Parts of a fused layer, stored in any order, land in their rows."""

from __future__ import annotations

import itertools

import pytest
import torch

from llm_inference.native.layers.linear import Linear, Placement

PLACEMENT = Placement(torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_fused_parts_in_any_order(order: tuple[int, ...]) -> None:
    linear = Linear(3, (2, 4), bias=True, placement=PLACEMENT)
    slots = linear.slots(["x", "y"], [None, lambda rows: rows.flip(0)])
    assert {name: slot.shape for name, slot in slots.items()} == {
        "x.weight": (2, 3),
        "x.bias": (2,),
        "y.weight": (4, 3),
        "y.bias": (4,),
    }
    tensors = {name: torch.randn(slot.shape) for name, slot in slots.items()}
    names = list(slots)
    with pytest.raises(AssertionError, match="never loaded"):
        _ = linear.kernel
    for index in order:
        slots[names[index]].store(tensors[names[index]])
    x = torch.randn(5, 3)
    left = x @ tensors["x.weight"].t() + tensors["x.bias"]
    right = (x @ tensors["y.weight"].t() + tensors["y.bias"]).flip(1)
    torch.testing.assert_close(linear(x), torch.cat([left, right], dim=1))
