"""What is packed arrives as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llm_inference.native.transfer import Courier, StaticParcel, to_device

CPU = torch.device("cpu")
TENSORS = [
    torch.tensor([3, -1, 2**40]),
    torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32),
    torch.tensor([], dtype=torch.int64),
    torch.tensor([0.5, float("-inf")], dtype=torch.bfloat16),
    torch.arange(12).view(3, 4)[:, 1:3],  # not contiguous
    torch.tensor(7, dtype=torch.int32),
]


def assert_same(arrived: list[torch.Tensor], sent: list[torch.Tensor]) -> None:
    for there, here in zip(arrived, sent, strict=True):
        assert (there.dtype, there.shape) == (here.dtype, here.shape)
        assert torch.equal(there, here)


def test_packed_tensors_arrive_as_they_were() -> None:
    courier = Courier(CPU, pack=True)
    first = courier.send(TENSORS)
    assert_same(first, TENSORS)
    starts = [tensor.data_ptr() for tensor in first if tensor.numel()]
    assert all((start - starts[0]) % 16 == 0 for start in starts)
    assert len({tensor.untyped_storage().data_ptr() for tensor in first}) == 1, "one buffer, one copy"
    for size in (5, 1000, 3):  # the buffers are used again, and grow
        assert_same(courier.send([torch.arange(size)]), [torch.arange(size)])
    assert_same(first, TENSORS)
    assert courier.send([]) == []


def test_a_cpu_gets_the_tensors_themselves() -> None:
    sent = Courier(CPU).send(TENSORS)
    assert all(there is here for there, here in zip(sent, TENSORS, strict=True))


def test_a_static_parcel_stays_where_it_is() -> None:
    parcel = StaticParcel(TENSORS, CPU)
    assert_same(parcel.tensors, TENSORS)
    places = [tensor.data_ptr() for tensor in parcel.tensors]
    other = [torch.ones_like(tensor) for tensor in TENSORS]
    parcel.fill(other)
    assert_same(parcel.tensors, other)
    assert [tensor.data_ptr() for tensor in parcel.tensors] == places
    assert parcel.num_bytes >= sum(tensor.nbytes for tensor in TENSORS)


def test_a_few_numbers() -> None:
    assert torch.equal(to_device([1.5, 2.0], CPU, torch.float64), torch.tensor([1.5, 2.0], dtype=torch.float64))
    assert to_device(np.array([3, 4], dtype=np.int32), CPU).dtype == torch.int32


@pytest.mark.parametrize("wrong", [torch.tensor([1, 2]), torch.tensor([1.0, 2.0, 3.0])])
def test_a_static_parcel_refuses_other_shapes_and_types(wrong: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="a static input of"):
        StaticParcel(TENSORS, CPU).fill([wrong, *TENSORS[1:]])
