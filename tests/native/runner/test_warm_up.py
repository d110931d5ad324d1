"""Which steps are made before the first request, and that they leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_inference.native.batch import ModelInput
from llm_inference.native.runner.warm_up import warm_up
from tests.native.paging import random_tokens
from tests.native.runner.runners import BLOCK_SIZE, RUNNERS, pager_on
from tests.native.tiny_models import save_tiny


class Timed:
    """A runner whose steps take `decode_s` for each decode, and 12 times as much with a chunk."""

    vocab_size = 10
    kv_block_bytes = 1

    def __init__(self, decode_s: float) -> None:
        self.sizes: list[list[int]] = []
        self.now_s = 0.0
        self._decode_s = decode_s

    def allocate_kv_cache(self, num_blocks: int) -> None:
        raise AssertionError

    def execute(self, model_input: ModelInput) -> torch.Tensor:
        self.sizes.append(model_input.query_lens)
        self.now_s += self._decode_s * (12 if max(model_input.query_lens) > 1 else 1)
        return torch.empty(0)

    def execute_with_hidden(self, model_input: ModelInput) -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError


@pytest.mark.parametrize(
    ("decode_s", "options", "expected"),
    [
        (0.02, {}, [[1], [1], [1] * 8, [*[1] * 8, 256]]),
        (0.02, {"max_tokens": 100}, [[1], [1], [1] * 8, [*[1] * 8, 92]]),
        (0.02, {"max_tokens": 4}, [[1], [1]]),
        (0.02, {"num_blocks": 3}, [[1], [1], [1] * 8, [*[1] * 8, 64]]),
        (0.1, {}, [[1], [1], [1] * 8]),
        (2.0, {}, [[1], [1]]),
    ],
)
def test_as_much_as_time_and_cache_allow(decode_s: float, options: dict[str, int], expected: list[list[int]]) -> None:
    runner = Timed(decode_s)
    sizes = {"block_size": 32, "num_blocks": 100, "max_tokens": 512} | options
    warm_up(runner, **sizes, now=lambda: runner.now_s)
    assert runner.sizes == expected


@pytest.mark.parametrize("name", RUNNERS)
def test_what_comes_after_is_as_without_it(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    pager = pager_on(name, tmp_path, num_blocks=4)
    warm_up(pager.runner, block_size=BLOCK_SIZE, num_blocks=4, max_tokens=64, budget_s=60)
    token_ids = random_tokens(100, seed=8)
    torch.testing.assert_close(pager.run(token_ids, 50), tiny.logits(token_ids), atol=2e-4, rtol=2e-4)
