"""The default model on a GPU against transformers on the same GPU, in half precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.gpu.conftest import MakeRunner
from tests.native.paging import Pager

pytestmark = pytest.mark.gpu

TEXTS = (
    "The capital of France is Paris. The capital of Italy is",
    "def factorial(n):\n    if n == 0:\n        return 1\n    return n *",
    "One, two, three, four, five, six, " * 60,
)


@torch.inference_mode()
def reference(
    directory: Path, dtype: torch.dtype, device: torch.device, prompts: list[list[int]]
) -> list[torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).to(device).eval()
    return [model(torch.tensor([prompt], device=device)).logits[0].float().cpu() for prompt in prompts]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_no_further_from_float32_than_transformers(
    attention: str, dtype: torch.dtype, device: torch.device, default_model_dir: Path, make_runner: MakeRunner
) -> None:
    """Prompts in chunks and then token by token, side by side: rounding may differ, its size may not."""
    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    exact = reference(default_model_dir, torch.float32, device, prompts)
    theirs = reference(default_model_dir, dtype, device, prompts)
    runner, parts = make_runner(default_model_dir, dtype, attention)
    pager = Pager(runner, block_size=parts.attention.block_size, num_blocks=64)
    sequences = [pager.add(prompt) for prompt in prompts]
    cuts = [len(prompt) // 2 for prompt in prompts]
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    first = pager.step([(sequence, 0, cut) for sequence, cut in zip(sequences, cuts, strict=True)])
    second = pager.step(
        [(sequence, cut, len(sequence.token_ids) - 4) for sequence, cut in zip(sequences, cuts, strict=True)]
    )
    for part in (first, second):
        for index, logits in enumerate(part):
            rows[index].append(logits)
    for left in range(4, 0, -1):
        ends = [len(sequence.token_ids) - left for sequence in sequences]
        for index, logits in enumerate(pager.step([(s, end, end + 1) for s, end in zip(sequences, ends, strict=True)])):
            rows[index].append(logits)
    for index, parts_of_one in enumerate(rows):
        ours = torch.cat(parts_of_one).float().cpu()
        our_error = float((ours - exact[index]).abs().mean())
        their_error = float((theirs[index] - exact[index]).abs().mean())
        assert our_error <= 1.5 * their_error + 1e-3
