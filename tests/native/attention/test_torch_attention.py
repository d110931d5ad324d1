"""The parts of the attention that a CPU does not take: inputs that are sent over, all at once."""

from __future__ import annotations

import torch

from llm_inference.native.attention.base import AttentionShape
from llm_inference.native.attention.torch_attention import TorchAttention, TorchAttentionStep
from llm_inference.native.transfer import Courier
from tests.native.attention.steps import CPU, filled_cache, paged_step, random_qkv

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.5, windows=(None, 10))


def test_a_plan_that_was_sent_over_is_the_same() -> None:
    step = paged_step([(1, 5), (1, 300), (1, 17), (7, 7), (30, 90)], num_blocks=64, block_size=8)
    num_rows = len(step.token_ids)
    qkv = random_qkv(SHAPE, num_rows)
    results = []
    for sent in (False, True):
        attention = TorchAttention(SHAPE, filled_cache(SHAPE, 64, 8), torch.float32, CPU)
        plans = {window: attention._plan(step, window) for window in SHAPE.windows}
        assert any(group.tokens is not None for plan in plans.values() for group in plan.groups)
        if sent:
            courier = Courier(CPU, pack=True)
            plans = {window: plan.at(iter(courier.send(plan.tensors()))) for window, plan in plans.items()}
        rows = attention.cache.token_rows(torch.tensor(step.slot_mapping))
        made = TorchAttentionStep(attention, torch.tensor(step.positions), rows, [plans[w] for w in SHAPE.windows])
        results.append(torch.stack([made.attend(layer, qkv) for layer in range(2)]))
    assert torch.equal(*results)
