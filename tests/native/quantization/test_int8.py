"""8-bit rows: closed forms at the edges."""

from __future__ import annotations

import torch

from llm_inference.native.quantization.int8 import Int8Kernel


def test_whole_numbers_up_to_127_are_exact() -> None:
    weight = torch.tensor([[127.0, -3.0, 0.0], [-127.0, 1.0, 64.0]])
    x = torch.randn(4, 3)
    torch.testing.assert_close(Int8Kernel(weight, None)(x), x @ weight.t())


def test_error_is_at_most_half_a_step_and_zero_rows_stay_zero() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 40)
    weight[2] = 0
    wide = Int8Kernel(weight, None)(torch.eye(40)).t()
    assert ((wide - weight).abs() <= weight.abs().amax(1, keepdim=True) / 254 + 1e-6).all()
    assert not wide[2].any()


def test_bias_residual_and_size() -> None:
    weight, bias = torch.randn(3, 5), torch.randn(3)
    kernel = Int8Kernel(weight, bias)
    assert kernel.num_bytes == 3 * 5 + 3 * 4 + 3 * 4
    x, residual = torch.randn(2, 5), torch.randn(2, 3)
    plain = Int8Kernel(weight, None)(x)
    torch.testing.assert_close(kernel(x, residual), plain + bias + residual)
