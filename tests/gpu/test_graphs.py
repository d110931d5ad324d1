"""Recorded steps on a GPU against eager ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_inference import LLM, SamplingParams
from llm_inference.native.runner.torch_build import start
from llm_inference.native.setup import CoreSetup
from tests.gpu.conftest import MakeRunner
from tests.native.paging import Pager, random_tokens

pytestmark = pytest.mark.gpu


def test_replayed_decodes_equal_eager_ones(
    attention: str, device: torch.device, default_model_dir: Path, make_runner: MakeRunner
) -> None:
    if attention == "sdpa":
        pytest.skip("sdpa has no graphs")
    prompts = [random_tokens(length, seed=length) for length in (3, 100, 255, 256, 600)]
    results = []
    for graphs in (False, True):
        runner, parts = make_runner(default_model_dir, torch.float16, attention, cuda_graphs=graphs)
        pager = Pager(runner, block_size=parts.attention.block_size, num_blocks=256)
        setup = CoreSetup(
            model_dir="", max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=512, num_valid_tokens=0
        )
        start(runner, parts, setup, device, 256)
        assert (runner._graphs is not None) == graphs
        sequences = [pager.add(prompt) for prompt in prompts]
        for sequence, prompt in zip(sequences, prompts, strict=True):
            pager.step([(sequence, 0, len(prompt) - 2)])
        for left, chosen in ((2, (0, 1, 2)), (2, (3, 4)), (1, (0, 2)), (1, (4,)), (1, (1, 3))):  # to 4, 2, 2, 1, 2
            work = [(sequences[i], len(prompts[i]) - left, len(prompts[i]) - left + 1) for i in chosen]
            results.append([logits.float().cpu() for logits in pager.step(work)])
    half = len(results) // 2
    for eager, replayed in zip(results[:half], results[half:], strict=True):
        for one, other in zip(eager, replayed, strict=True):
            torch.testing.assert_close(other, one, atol=0.05, rtol=0.02)


def test_whole_requests(attention: str, default_model_dir: Path) -> None:
    """Greedy answers of a batch whose size changes as answers end; ties may fall either way, so most tokens."""
    if attention == "sdpa":
        pytest.skip("sdpa has no graphs")
    prompts = ["The capital of France is", "One, two, three, four,", "def factorial(n):", "Once upon a time"]
    params = [SamplingParams(temperature=0.0, max_tokens=8 + 8 * index, ignore_eos=True) for index in range(4)]
    answers = []
    for graphs in (False, True):
        llm = LLM(
            str(default_model_dir),
            device="cuda",
            precision="float16",
            attention=attention,
            cuda_graphs=graphs,
            max_num_seqs=8,
            kv_cache_memory="512MiB",
            progress=False,
        )
        answers.append([output.token_ids for output in llm.generate(prompts, params)])
        llm.close()
    equal = sum(a == b for one, other in zip(*answers, strict=True) for a, b in zip(one, other, strict=True))
    assert equal >= 0.8 * sum(map(len, answers[0]))
