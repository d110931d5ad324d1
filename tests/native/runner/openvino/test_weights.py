"""Constants in a graph give back the tensors that they share memory with."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

ov = pytest.importorskip("openvino", reason="the package openvino is not installed (extra `cpu`)")

from openvino import opset15 as ops  # noqa: E402

from llm_inference.native.quantization.int8 import quantize_rows  # noqa: E402
from llm_inference.native.runner.openvino.weights import (  # noqa: E402
    GROUP_SIZE,
    Constants,
    Matrix,
)


def computed(*nodes: object) -> list[torch.Tensor]:
    model = ov.Model([ops.result(node) for node in nodes], [], "test")
    request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    request.infer()
    return [torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in range(len(nodes))]


def values_of(matrix: Matrix) -> list[torch.Tensor]:
    return computed(matrix.whole(), matrix.rows(ops.constant(np.array([2, 0], np.int64))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dense(dtype: torch.dtype) -> None:
    constants = Constants()
    weight = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = weight.float().clone()
    matrix = constants.dense(weight)
    assert matrix.num_bytes == 5 * 8 * dtype.itemsize
    del weight
    gc.collect()
    whole, rows = values_of(matrix)
    assert torch.equal(whole, expected)
    assert torch.equal(rows, expected[[2, 0]])


def test_float32_is_shared_not_copied() -> None:
    weight = torch.zeros(4, 4)
    node = Constants().share(weight)
    weight[1, 2] = 7
    assert node.data[1, 2] == 7


@pytest.mark.parametrize(("in_features", "group"), [(128, GROUP_SIZE), (40, 40)])
def test_int8(in_features: int, group: int) -> None:
    """By groups, or by rows where the groups do not divide them."""
    weight = torch.randn(5, in_features, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    values, scales = quantize_rows(weight.reshape(-1, group))
    matrix = Constants().int8(weight)
    assert matrix.num_bytes == 5 * in_features + 5 * (in_features // group) * 4
    whole, rows = values_of(matrix)
    torch.testing.assert_close(whole, (values.float() * scales[:, None]).view_as(weight))
    torch.testing.assert_close(rows, whole[[2, 0]])
    assert (whole - weight).abs().max() <= scales.max() / 2 + 1e-6
