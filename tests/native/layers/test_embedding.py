"""The two ends of a model: what is shared, what is widened, what is counted."""

from __future__ import annotations

import torch

from llm_inference.native.layers.embedding import EmbeddingAndHead
from llm_inference.native.layers.linear import Placement

CPU = torch.device("cpu")


def ends(dtype: torch.dtype, table: torch.Tensor, head: torch.Tensor | None = None) -> EmbeddingAndHead:
    result = EmbeddingAndHead(*table.shape, tied=head is None, placement=Placement(dtype, CPU))
    slots = result.slots("embedding", "head")
    slots["embedding"].store(table)
    if head is not None:
        slots["head"].store(head)
    result.finish()
    return result


def test_rows_and_logits() -> None:
    table, head = torch.randn(9, 4), torch.randn(9, 4)
    result = ends(torch.float32, table, head)
    assert torch.equal(result.embed(torch.tensor([3, 0, 3])), table[[3, 0, 3]])
    x = torch.randn(5, 4)
    torch.testing.assert_close(result.logits(x), x @ head.t())
    torch.testing.assert_close(ends(torch.float32, table).logits(x), x @ table.t())
    assert result.num_bytes == 2 * 9 * 4 * 4


def test_a_half_precision_table_is_kept_and_widened_without_loss() -> None:
    table = torch.randn(9, 4).bfloat16()
    result = ends(torch.float32, table)
    assert torch.equal(result.embed(torch.arange(9)), table.float())
    assert result.num_bytes == 9 * 4 * (2 + 4)


def test_a_table_that_the_head_multiplies_by_is_counted_once() -> None:
    result = ends(torch.float16, torch.randn(9, 4).half())  # no packed kernel for float16
    assert result.num_bytes == 9 * 4 * 2
    assert result.logits(torch.ones(1, 4).half()).dtype == torch.float32
