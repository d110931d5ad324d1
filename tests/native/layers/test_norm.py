"""RMSNorm against its formula, in both precisions."""

from __future__ import annotations

import pytest
import torch

from llm_inference.native.layers.linear import Placement
from llm_inference.native.layers.norm import RMSNorm


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_formula(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(48, 1e-3, Placement(dtype, torch.device("cpu")))
    weight = torch.randn(48)
    norm.slots("n")["n.weight"].store(weight)
    x = (torch.randn(6, 48) * 3).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.to(dtype).double()
    result = norm(x)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


def test_large_half_precision_values_do_not_overflow() -> None:
    norm = RMSNorm(8, 1e-5, Placement(torch.float16, torch.device("cpu")))
    norm.slots("n")["n.weight"].store(torch.ones(8))
    assert torch.allclose(norm(torch.full((1, 8), 6e4, dtype=torch.float16)).float(), torch.ones(1, 8), atol=1e-2)
