"""Steps over one layer stack's cache, for tests that put an attention beside another."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from llm_inference.native.attention.base import Attention, AttentionShape, PreparedStep
from llm_inference.native.attention.paged_kv import PagedKV
from llm_inference.native.attention.torch_attention import TorchAttention
from llm_inference.native.batch import ModelInput
from llm_inference.native.transfer import Courier

CPU = torch.device("cpu")


def paged_step(work: Sequence[tuple[int, int]], num_blocks: int, block_size: int, seed: int = 0) -> ModelInput:
    """`work`: (query tokens, context tokens) a sequence, single tokens first; blocks scattered, none shared."""
    free = list(range(num_blocks))
    random.Random(seed).shuffle(free)
    made = ModelInput([], [], [], [], [], [], [], [], 0)
    for query, context in work:
        table = [free.pop() for _ in range(-(-context // block_size))]
        positions = range(context - query, context)
        made.token_ids += [0] * query
        made.positions += positions
        made.slot_mapping += [table[p // block_size] * block_size + p % block_size for p in positions]
        made.query_lens.append(query)
        made.context_lens.append(context)
        made.block_tables.append(table)
        made.num_decodes += query == 1
    return made


def filled_cache(
    shape: AttentionShape,
    num_blocks: int,
    block_size: int,
    *,
    num_scratch_blocks: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> PagedKV:
    """Every slot has keys and values already, the same for equal arguments but for scratch blocks and rounding."""
    cache = PagedKV(shape, num_blocks, block_size, dtype, device, num_scratch_blocks=num_scratch_blocks)
    generator = torch.Generator().manual_seed(1)
    for layer in range(shape.num_layers):
        for side in cache.layer(layer):
            side[:num_blocks] = torch.randn(num_blocks, *side.shape[1:], generator=generator).to(device, dtype)
    return cache


def random_qkv(shape: AttentionShape, num_rows: int) -> torch.Tensor:
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(2))


def attend_all(attention: Attention, shape: AttentionShape, model_input: ModelInput, num_rows: int) -> torch.Tensor:
    """Every layer's output for the same queries, `[layers, rows, heads · dim]`; inputs travel as they do to a GPU."""
    prepared: PreparedStep = attention.prepare(model_input, num_rows)
    data = attention.cache.data
    step = prepared.arrive(Courier(data.device, pack=True).send(prepared.tensors))
    assert step.positions.tolist()[: len(model_input.positions)] == model_input.positions
    assert step.positions.shape == (num_rows,)
    qkv = random_qkv(shape, num_rows).to(data.device, data.dtype)
    return torch.stack([step.attend(layer, qkv) for layer in range(shape.num_layers)])


def by_sdpa(
    shape: AttentionShape, model_input: ModelInput, num_rows: int, num_blocks: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference: what the CPU's attention gives, and the cache as it leaves it."""
    cache = filled_cache(shape, num_blocks, block_size)
    attended = attend_all(TorchAttention(shape, cache, torch.float32, CPU), shape, model_input, num_rows)
    return attended, cache.data
