from __future__ import annotations

import torch

from llm_inference.native.layers.layer_norm import LayerNorm
from llm_inference.native.layers.linear import Placement


def test_equals_its_formula() -> None:
    torch.manual_seed(0)
    norm = LayerNorm(12, 1e-3, Placement(torch.float32, torch.device("cpu")))
    weight, bias, x = torch.randn(12), torch.randn(12), torch.randn(5, 12)
    slots = norm.slots("n")
    slots["n.weight"].store(weight)
    slots["n.bias"].store(bias)
    expected = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-3).sqrt() * weight + bias
    torch.testing.assert_close(norm(x), expected)
    assert norm.num_bytes == 2 * 12 * 4
