"""Where a token is written is where its block is read."""

from __future__ import annotations

import torch

from llm_inference.native.attention.base import AttentionShape
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.batch import ModelInput

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=3, scale=1.0, windows=(None, 5))
CPU = torch.device("cpu")


def filled(num_blocks: int = 7, block_size: int = 4) -> tuple[PagedKV, torch.Tensor]:
    """A cache whose every slot of layer 1 was written, in a random order, and the tokens by slot."""
    torch.manual_seed(0)
    cache = PagedKV(SHAPE, num_blocks, block_size, torch.float32, CPU)
    cache.clear(list(range(num_blocks)))
    tokens = torch.randn(num_blocks * block_size, 4, 3)  # keys of two heads, then values
    slots = torch.randperm(num_blocks * block_size)
    cache.write(1, cache.token_rows(slots), tokens[slots])
    return cache, tokens


def test_gathered_blocks_hold_the_written_tokens() -> None:
    cache, tokens = filled()
    tables = torch.tensor([[6, 0, 3], [2, 2, 5]])
    tiles = cache.block_tiles(tables)
    assert tiles.shape == (2, 2, 2, 3)
    out = torch.empty(tiles.numel(), 4 * 3)
    cache.gather(1, tiles.flatten(), out)
    gathered = out.view(2, 2, 2, 12, 3)  # side, sequence, head, token
    for sequence, table in enumerate(tables.tolist()):
        for position in range(12):
            slot = table[position // 4] * 4 + position % 4
            for head in range(2):
                assert torch.equal(gathered[0, sequence, head, position], tokens[slot, head])
                assert torch.equal(gathered[1, sequence, head, position], tokens[slot, 2 + head])
    assert not cache.data[0].any()  # the other layer


def test_copies_happen_at_once_and_clear_zeroes() -> None:
    cache, _ = filled()
    before = cache.data.clone()
    cache.copy_blocks([(0, 1), (1, 2), (5, 0)])
    for source, destination in ((0, 1), (1, 2), (5, 0)):
        assert torch.equal(cache.data[:, :, destination], before[:, :, source])
    assert torch.equal(cache.data[:, :, 3:], before[:, :, 3:])
    cache.clear([1, 4])
    assert not cache.data[:, :, [1, 4]].any()
    assert cache.data[1, :, [0, 2, 3]].any()


def test_what_a_step_changes_first() -> None:
    """Copies from before the step, then the clearing of the blocks whose first slot it writes."""
    cache, _ = filled()
    before = cache.data.clone()
    step = ModelInput([], [], [3, 4 * 4, 4 * 4 + 1, 2 * 4], [], [], [], [], [(0, 1), (1, 6)], 0)
    changes = cache.changes(step)
    assert [tensor.tolist() for tensor in changes] == [[0, 1], [1, 6], [4, 2]]
    cache.begin(changes)
    assert torch.equal(cache.data[:, :, [1, 6]], before[:, :, [0, 1]])
    assert not cache.data[:, :, [2, 4]].any()
    assert torch.equal(cache.data[:, :, [0, 3, 5]], before[:, :, [0, 3, 5]])
    assert all(len(tensor) == 0 for tensor in cache.changes(ModelInput([], [], [5], [], [], [], [], [], 0)))


def test_scratch_blocks_lie_behind_the_others_and_are_zero() -> None:
    cache = PagedKV(SHAPE, 5, 4, torch.float32, CPU, num_scratch_blocks=2)
    assert cache.num_blocks == 7
    assert cache.layer(1)[0].shape == (7, 2, 4, 3)
    assert not cache.data[:, :, 5:].any()
    tokens = torch.randn(1, 4, 3)
    cache.write(0, cache.token_rows(torch.tensor([6 * 4 + 1])), tokens)
    keys, values = cache.layer(0)
    assert torch.equal(keys[6, :, 1], tokens[0, :2])
    assert torch.equal(values[6, :, 1], tokens[0, 2:])


def test_bytes() -> None:
    assert SHAPE.num_layers == 2
    assert SHAPE.kv_bytes(10, torch.bfloat16) == 2 * 2 * 2 * 3 * 10 * 2
    assert PagedKV(SHAPE, 5, 2, torch.bfloat16, CPU).data.nbytes == SHAPE.kv_bytes(10, torch.bfloat16)
