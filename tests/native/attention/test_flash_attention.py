"""What is handed to flash-attn gives what torch's own operators give, by a stand-in that follows its documentation."""

from __future__ import annotations

import pytest
import torch

from llm_inference.native.attention.base import AttentionShape, CapturableAttention
from llm_inference.native.attention.flash_attention import FlashAttention
from llm_inference.native.transfer import StaticParcel
from tests.native.attention.fake_kernels import FakeFlashAttn
from tests.native.attention.steps import (
    CPU,
    attend_all,
    by_sdpa,
    filled_cache,
    paged_step,
    random_qkv,
)

BLOCK_SIZE, NUM_BLOCKS = 256, 12
#: A scale that is not the default, groups of two, and windows that begin within a block and at its edge.
SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5, windows=(None, 100, 256, 1))
WORK = {
    "decodes": [(1, 1), (1, 256), (1, 257), (1, 700)],
    "chunks": [(5, 5), (20, 300), (256, 256), (2, 513)],
    "both": [(1, 300), (1, 2), (1, 512), (7, 7), (30, 290)],
    "one": [(1, 40)],
}


def make(num_scratch_blocks: int = 0) -> tuple[FlashAttention, FakeFlashAttn]:
    cache = filled_cache(SHAPE, NUM_BLOCKS, BLOCK_SIZE, num_scratch_blocks=num_scratch_blocks)
    fake = FakeFlashAttn()
    return FlashAttention(SHAPE, cache, torch.float32, CPU, max_model_len=1000, function=fake), fake


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("name", WORK)
def test_it_attends_as_sdpa_does(name: str, padding: int) -> None:
    step = paged_step(WORK[name], NUM_BLOCKS, BLOCK_SIZE)
    num_rows = len(step.token_ids) + padding
    attention, fake = make()
    attended = attend_all(attention, SHAPE, step, num_rows)
    expected, cache = by_sdpa(SHAPE, step, num_rows, NUM_BLOCKS, BLOCK_SIZE)
    torch.testing.assert_close(attended, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(attention.cache.data, cache)
    # Decodes go alone: only then are heads of a group packed, and long contexts split.
    num_decodes, num_chunks = step.num_decodes, len(step.query_lens) - step.num_decodes
    longest = max(step.query_lens)
    calls = [(num_decodes, 1)] * (num_decodes > 0) + [(num_chunks, longest)] * (num_chunks > 0)
    assert fake.calls == calls * SHAPE.num_layers


def test_a_static_step_reads_its_inputs_anew() -> None:
    """As in a graph: one step object of four rows, for batches of three and then two decodes."""
    attention, _ = make(num_scratch_blocks=1)
    assert isinstance(attention, CapturableAttention)
    nothing = paged_step([], NUM_BLOCKS, BLOCK_SIZE)
    parcel = StaticParcel(attention.static_inputs(nothing, 4), CPU)
    qkv = random_qkv(SHAPE, 4)
    for work in (WORK["decodes"][1:], WORK["decodes"][2:]):
        step = paged_step(work, NUM_BLOCKS, BLOCK_SIZE)
        parcel.fill(attention.static_inputs(step, 4))
        static = attention.static_step(4, parcel.tensors)
        attended = torch.stack([static.attend(layer, qkv) for layer in range(SHAPE.num_layers)])
        fresh, _ = make()
        fresh.cache.data.copy_(attention.cache.data[:, :, :NUM_BLOCKS])
        prepared = fresh.prepare(step, len(work))
        eager = prepared.arrive(prepared.tensors)
        rows = qkv[: len(work)]
        expected = torch.stack([eager.attend(layer, rows) for layer in range(SHAPE.num_layers)])
        assert torch.equal(attended[:, : len(work)], expected)
        assert attended.isfinite().all()


def test_padding_writes_into_the_scratch_block_alone() -> None:
    attention, _ = make(num_scratch_blocks=1)
    before = attention.cache.data.clone()
    nothing = paged_step([], NUM_BLOCKS, BLOCK_SIZE)
    static = attention.static_step(2, attention.static_inputs(nothing, 2))
    static.attend(0, random_qkv(SHAPE, 2))
    assert torch.equal(attention.cache.data[:, :, :NUM_BLOCKS], before[:, :, :NUM_BLOCKS])
    assert attention.cache.data[0, :, NUM_BLOCKS, :, 0].any()
    assert not before[:, :, NUM_BLOCKS].any(), "finite from the start"
