"""Every kernel multiplies: against the plain product in float64."""

from __future__ import annotations

import pytest
import torch

from llm_inference.native.layers.kernels import DenseKernel, OneDnnKernel, make_kernel

CPU = torch.device("cpu")
HAS_ONEDNN = OneDnnKernel.supports(torch.float32, CPU)


@pytest.mark.parametrize(
    "kernel_class",
    [DenseKernel, pytest.param(OneDnnKernel, marks=pytest.mark.skipif(not HAS_ONEDNN, reason="no oneDNN here"))],
)
@pytest.mark.parametrize("rows", [1, 2, 4, 17])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (64, 48)])
def test_product_bias_and_residual(
    kernel_class: type[DenseKernel] | type[OneDnnKernel], rows: int, with_bias: bool, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(shape), torch.randn(rows, shape[1])
    bias = torch.randn(shape[0]) if with_bias else None
    residual = torch.randn(rows, shape[0])
    expected = x.double() @ weight.double().t()
    if bias is not None:
        expected = expected + bias.double()
    kernel = kernel_class(weight.clone(), bias)
    assert kernel.num_bytes == 4 * (weight.numel() + (shape[0] if with_bias else 0))
    torch.testing.assert_close(kernel(x).double(), expected, atol=1e-5, rtol=1e-5)
    kept = residual.clone()
    torch.testing.assert_close(kernel(x, residual).double(), expected + residual.double(), atol=1e-5, rtol=1e-5)
    assert torch.equal(residual, kept)


@pytest.mark.skipif(not HAS_ONEDNN, reason="no oneDNN here")
def test_packed_rows_do_not_depend_on_their_neighbours() -> None:
    torch.manual_seed(0)
    kernel = OneDnnKernel(torch.randn(192, 64), None)
    x = torch.randn(64, 64)
    whole = kernel(x)
    for rows in (4, 5, 16, 33):
        assert torch.equal(kernel(x[:rows]), whole[:rows])


def test_the_kernel_fits_device_and_dtype() -> None:
    assert isinstance(make_kernel(torch.ones(4, 4), None), OneDnnKernel if HAS_ONEDNN else DenseKernel)
    assert isinstance(make_kernel(torch.ones(4, 4, dtype=torch.float64), None), DenseKernel)
    assert isinstance(make_kernel(torch.ones(4, 4, device="meta"), None), DenseKernel)
