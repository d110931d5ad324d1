"""Greedy output of the default model against transformers' `generate`, on the same float32 weights.

Equal, or the first divergence stands where transformers' two best logits differ by less than `TIE`. Log-probabilities
agree within `TOLERANCE` up to there. Run by `make test-slow`; the environment variable PARITY_PROMPTS takes fewer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from llm_inference.engine.types import ChatPrompt, SamplingParams
from llm_inference.llm import LLM, RequestOutput
from llm_inference.native.runner.compiled.build import obstacle
from tests.parity.prompts import parity_prompts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_TOKENS = 128
TIE = 1e-3
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Reference:
    token_ids: list[int]
    logprobs: list[float]
    gaps: list[float]  # between the two best logits of each step


@pytest.fixture(scope="module")
def prompts(repository: Path) -> list[str]:
    return parity_prompts(repository)[: int(os.environ.get("PARITY_PROMPTS", "50"))]


@pytest.fixture(scope="module")
def references(default_model_dir: Path, prompts: list[str]) -> list[Reference]:
    tokenizer = AutoTokenizer.from_pretrained(default_model_dir)
    model = AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    references = []
    for prompt in prompts:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            out = model.generate(
                **ids,
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
                pad_token_id=0,
            )
        logits = torch.cat(out.logits).float()
        token_ids = out.sequences[0, ids["input_ids"].shape[1] :]
        best = logits.topk(2).values
        logprobs = torch.log_softmax(logits, -1).gather(1, token_ids[:, None])[:, 0]
        references.append(Reference(token_ids.tolist(), logprobs.tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return references


@pytest.fixture(
    scope="module",
    params=[(runner, cached) for runner in ("compiled", "openvino", "torch") for cached in (True, False)],
    ids=lambda param: f"{param[0]}-{'prefix-cache' if param[1] else 'no-prefix-cache'}",
)
def llm(request: pytest.FixtureRequest, default_model_dir: Path) -> Iterator[LLM]:
    runner, enable_prefix_caching = request.param
    if runner == "openvino":
        pytest.importorskip("openvino", reason="the extra `cpu` is not installed")
    if runner == "compiled" and obstacle() is not None:
        pytest.skip("there is no C compiler")
    with LLM(
        str(default_model_dir),
        runner=runner,
        enable_prefix_caching=enable_prefix_caching,
        kv_cache_memory=2 * 2**30,
        max_num_seqs=16,
        max_model_len=4096,
        progress=False,
    ) as llm:
        yield llm


def check(outputs: list[RequestOutput], references: list[Reference], label: str) -> None:
    num_equal, worst = 0, 0.0
    for number, (output, reference) in enumerate(zip(outputs, references, strict=True)):
        ours = output.outputs[0]
        assert len(ours.token_ids) == NUM_TOKENS
        assert ours.logprobs is not None
        first = next(
            (i for i, (a, b) in enumerate(zip(ours.token_ids, reference.token_ids, strict=True)) if a != b), NUM_TOKENS
        )
        if first < NUM_TOKENS:
            gap = reference.gaps[first]
            assert gap < TIE, f"prompt {number}: other token at step {first}, where the gap is {gap}"
        else:
            num_equal += 1
        for entry, logprob in zip(ours.logprobs[:first], reference.logprobs[:first], strict=True):
            assert entry.logprob is not None
            worst = max(worst, abs(entry.logprob - logprob))
    print(
        f"\n{label}: {num_equal} of {len(outputs)} equal, {len(outputs) - num_equal} diverge at a tie (gap < {TIE}); "
        f"largest difference of a log-probability {worst:.2e}"
    )
    assert worst < TOLERANCE


@pytest.mark.parametrize("batch", [1, 16], ids=["alone", "batches-of-16"])
def test_equals_transformers(llm: LLM, prompts: list[str], references: list[Reference], batch: int) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
    outputs: list[RequestOutput] = []
    for start in range(0, len(prompts), batch):
        chats = [ChatPrompt(messages=({"role": "user", "content": p},)) for p in prompts[start : start + batch]]
        outputs += llm.generate(chats, sampling)
    check(outputs, references, f"batch of {batch}")
