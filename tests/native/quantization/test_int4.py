"""4-bit groups: closed forms at the edges."""

from __future__ import annotations

import pytest
import torch

from llm_inference.native.quantization.int4 import GROUP_SIZE, Int4Kernel


def test_sixteen_levels_are_exact() -> None:
    weight = (torch.arange(2 * GROUP_SIZE) % 16).float().view(1, -1) * 0.25 - 1.5
    assert torch.equal(Int4Kernel(weight, None).widen(), weight)


@pytest.mark.parametrize("in_features", [1, 31, 32, 33, 100])
def test_error_is_at_most_half_a_step(in_features: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, in_features)
    wide = Int4Kernel(weight, None).widen()
    assert wide.shape == weight.shape
    for start in range(0, in_features, GROUP_SIZE):
        group = weight[:, start : start + GROUP_SIZE]
        half = (group.amax(1) - group.amin(1)) / 30
        error = (wide[:, start : start + GROUP_SIZE] - group).abs().amax(1)
        assert (error <= half + 1e-6).all()


def test_constant_rows_and_size() -> None:
    kernel = Int4Kernel(torch.full((4, 64), 0.3), torch.ones(4))
    assert torch.allclose(kernel.widen(), torch.full((4, 64), 0.3))
    assert kernel.num_bytes == 4 * 64 // 2 + 2 * (4 * 2 * 4) + 4 * 4
    x, residual = torch.randn(3, 64), torch.randn(3, 4)
    torch.testing.assert_close(kernel(x, residual), x @ kernel.widen().t() + 1 + residual)
