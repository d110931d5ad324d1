"""Grouped and padded equals one input at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from llm_inference.native.attention.bidirectional import BidirectionalAttention

CPU = torch.device("cpu")


@pytest.mark.parametrize("lengths", [[1], [4, 4, 4], [1, 2, 3, 30, 31, 31, 90], [7, 8]])
def test_equals_attention_of_each_input_alone(lengths: list[int]) -> None:
    torch.manual_seed(len(lengths))
    qkv = torch.randn(sum(lengths), 3 * 2 * 8)
    ours = BidirectionalAttention(lengths, 2, 8, CPU).attend(qkv)
    assert ours.shape == (sum(lengths), 16)
    start = 0
    for length in lengths:
        query, key, value = qkv[start : start + length].view(length, 3, 2, 8).permute(1, 2, 0, 3)
        weights = torch.softmax(query @ key.transpose(1, 2) / 8**0.5, -1)
        expected = (weights @ value).transpose(0, 1).reshape(length, 16)
        torch.testing.assert_close(ours[start : start + length], expected, atol=1e-5, rtol=1e-5)
        start += length


def test_padding_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = sorted((7 * number) % 200 + 1 for number in range(60))
    computed = 0
    attend = F.scaled_dot_product_attention

    def counting(query: torch.Tensor, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        nonlocal computed
        computed += query.shape[0] * query.shape[2]
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counting)
    BidirectionalAttention(lengths, 2, 8, CPU).attend(torch.randn(sum(lengths), 48))
    assert sum(lengths) <= computed < 1.25 * sum(lengths)


def test_lengths_must_ascend() -> None:
    with pytest.raises(AssertionError):
        BidirectionalAttention([3, 2], 2, 8, CPU)
