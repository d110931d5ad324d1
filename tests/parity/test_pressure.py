"""Under memory pressure every request says what it says alone.

The default model with a KV pool so small that running sequences are preempted and cached blocks are evicted, under
requests that share prefixes, ask for several choices, are seeded or are not. Each greedy or seeded one equals its run
alone, with room and without a prefix cache; or it first diverges where the arithmetic's own noise decides: between two
logits, or at an edge between two tokens' shares of the draw, that are less than `TIE` apart. Run by `make test-slow`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from llm_inference.engine.base import EngineStats
from llm_inference.engine.types import SamplingParams, TokenLogprob
from llm_inference.llm import LLM, Completion, RequestOutput
from llm_inference.native.runner.choice import BLOCK_SIZES, RunnerName
from llm_inference.native.runner.compiled.build import obstacle
from tests.parity.prompts import SHORT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NUM_TOKENS = 40
POOL_TOKENS = 640
NUM_PREFIXES, NUM_REQUESTS, NUM_UNSEEDED = 4, 24, 4
TEMPERATURE, TOP_K = 0.9, 8
TIE = 1e-3
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Case:
    prompt: str
    sampling: SamplingParams


@pytest.fixture(scope="module")
def cases(repository: Path) -> list[Case]:
    """A third greedy, a third seeded, a third seeded with n=3, all beside each other; four prefixes between them."""
    text = " ".join((repository / "LICENSE").read_text().split())
    prefixes = [text[500 * i : 500 * i + 330] for i in range(NUM_PREFIXES)]
    whole = {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    cases = []
    for number in range(NUM_REQUESTS):
        drawn = {"temperature": TEMPERATURE, "top_k": TOP_K, "logprobs": TOP_K + 1, "seed": 1000 + number, **whole}
        kinds = (
            SamplingParams(temperature=0.0, logprobs=2, **whole),
            SamplingParams(**drawn),
            SamplingParams(n=3, **drawn),
        )
        prompt = f"{prefixes[number % NUM_PREFIXES]}\n\n{SHORT[number]}"
        cases.append(Case(prompt, kinds[number // NUM_PREFIXES % 3]))
    return cases


@pytest.fixture(scope="module", params=["openvino", "torch", "compiled", "compiled int8"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "openvino":
        pytest.importorskip("openvino", reason="the extra `cpu` is not installed")
    if request.param.startswith("compiled") and obstacle() is not None:
        pytest.skip("there is no C compiler")
    return str(request.param)


@pytest.fixture(scope="module")
def runner(kind: str) -> RunnerName:
    name: Any = kind.split()[0]
    return name  # type: ignore[no-any-return]


def options_of(kind: str) -> dict[str, Any]:
    """What makes the runner the one that runs."""
    runner, _, precision = kind.partition(" ")
    return {"runner": runner, "precision": precision or "float32"}


@pytest.fixture(scope="module")
def alone(default_model_dir: Path, cases: list[Case], kind: str) -> list[RequestOutput]:
    options = {**options_of(kind), "max_model_len": 512, "max_num_seqs": 4, "enable_prefix_caching": False}
    with LLM(str(default_model_dir), progress=False, kv_cache_memory=2**28, **options) as llm:
        outputs = [output for case in cases for output in llm.generate(case.prompt, case.sampling)]
        assert llm._core.stats().num_preemptions == 0
    return outputs


@pytest.fixture(scope="module")
def crowded(default_model_dir: Path, cases: list[Case], kind: str) -> Iterator[tuple[list[RequestOutput], EngineStats]]:
    """All at once, with unseeded neighbours, in a pool that holds a few of them; and the engine's figures after it."""
    # Keys and values, layers, KV heads, head size in float32; or in 8 bits with a scale and a minimum.
    token_bytes = 2 * 30 * 3 * (64 + 8 if kind == "compiled int8" else 64 * 4)
    unseeded = SamplingParams(temperature=1.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    every = len(cases) // NUM_UNSEEDED
    batch: list[Case] = []
    for number, case in enumerate(cases):
        if number % every == 0:
            batch.append(Case(SHORT[-1 - number // every], unseeded))
        batch.append(case)
    with LLM(
        str(default_model_dir),
        progress=False,
        **options_of(kind),
        kv_cache_memory=POOL_TOKENS * token_bytes,
        max_model_len=256,
        max_num_seqs=16,
        max_batch_size=len(batch),
        max_num_batched_tokens=128,
    ) as llm:
        outputs = llm.generate([case.prompt for case in batch], [case.sampling for case in batch])
        yield (
            [one for one, case in zip(outputs, batch, strict=True) if case.sampling is not unseeded],
            llm._core.stats(),
        )


def test_the_pool_was_under_pressure(crowded: tuple[list[RequestOutput], EngineStats], runner: RunnerName) -> None:
    _, stats = crowded
    num_blocks = POOL_TOKENS // BLOCK_SIZES[runner]
    print(
        f"\n{stats.num_kv_blocks} blocks, {stats.num_steps} steps: {stats.num_preemptions} preemptions, "
        f"{stats.num_evictions} evictions, {stats.prefix_cache_hits} of {stats.prefix_cache_queries} tokens found"
    )
    assert stats.num_kv_blocks == num_blocks
    assert stats.num_preemptions > 0
    assert stats.num_evictions > 0
    assert stats.prefix_cache_hits > 0
    assert stats.num_free_kv_blocks == num_blocks
    assert stats.num_running == stats.num_waiting == 0


def test_seeded_tokens_are_their_hash_of_the_cumulative_distribution(
    alone: list[RequestOutput], cases: list[Case]
) -> None:
    """What the comparison under pressure leans on: alone, each drawn token is where its own random number points."""
    num_seen = 0
    for case, output in zip(cases, alone, strict=True):
        for choice in output.outputs if case.sampling.seed is not None else []:
            for step, entry in enumerate(entries(choice)):
                share = shares(entry)[entry.token_id]
                number = uniform(case.sampling.seed, choice.index, step)
                assert share[0] - 1e-6 <= number < share[1] + 1e-6
                num_seen += 1
    assert num_seen == NUM_REQUESTS // 3 * (1 + 3) * NUM_TOKENS


def test_each_request_equals_its_run_alone(
    alone: list[RequestOutput],
    crowded: tuple[list[RequestOutput], EngineStats],
    cases: list[Case],
    runner: RunnerName,
) -> None:
    num_choices = num_equal = 0
    worst = 0.0
    for number, (case, ours, reference) in enumerate(zip(cases, crowded[0], alone, strict=True)):
        assert ours.prompt == reference.prompt == case.prompt
        assert len(ours.outputs) == len(reference.outputs) == case.sampling.n
        for choice, expected in zip(ours.outputs, reference.outputs, strict=True):
            pairs = list(zip(entries(choice), entries(expected), strict=True))
            first = next((i for i, (a, b) in enumerate(pairs) if a.token_id != b.token_id), NUM_TOKENS)
            if first < NUM_TOKENS:
                seed, entry = case.sampling.seed, pairs[first][1]
                gap = logit_gap(entry) if seed is None else draw_gap(entry, uniform(seed, choice.index, first))
                where = f"request {number}, choice {choice.index}: other token at step {first}"
                assert gap < TIE, f"{where}, where the gap is {gap}"
            for a, b in pairs[:first]:
                assert a.logprob is not None
                assert b.logprob is not None
                worst = max(worst, abs(a.logprob - b.logprob))
            num_choices += 1
            num_equal += first == NUM_TOKENS
    print(
        f"\n{num_equal} of {num_choices} choices equal, {num_choices - num_equal} diverge at a tie (gap < {TIE}); "
        f"largest difference of a log-probability {worst:.2e}"
    )
    assert num_choices == NUM_REQUESTS // 3 * (1 + 1 + 3)
    assert worst < TOLERANCE
    if runner == "compiled":
        # Its sums keep their order in any company: there are no ties for noise to decide.
        assert (num_equal, worst) == (num_choices, 0)


def test_choices_and_seeds_differ(alone: list[RequestOutput], cases: list[Case]) -> None:
    """Else the equality above would be cheap."""
    drawn = [
        choice.token_ids
        for case, output in zip(cases, alone, strict=True)
        if case.sampling.seed is not None
        for choice in output.outputs
    ]
    assert len(set(drawn)) == len(drawn) == NUM_REQUESTS // 3 * (1 + 3)


def entries(choice: Completion) -> tuple[TokenLogprob, ...]:
    """One per token; the last of them ends the choice by its length."""
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert tuple(entry.token_id for entry in choice.logprobs) == choice.token_ids
    assert len(choice.token_ids) == NUM_TOKENS
    return choice.logprobs


def uniform(seed: int | None, index: int, step: int) -> float:
    """A seeded choice's random number for a step, in [0, 1): what makes equal seeds give equal text forever."""
    digest = blake2b(f"{seed},{index},{step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def shares(entry: TokenLogprob) -> dict[int, tuple[float, float]]:
    """Of the interval from 0 to 1, by token id: what each of the `TOP_K` best tokens takes, in the order of the ids."""
    best = entry.top[0][2]
    weights = {token_id: math.exp((logprob - best) / TEMPERATURE) for token_id, _, logprob, _ in entry.top[:TOP_K]}
    assert len(weights) == TOP_K
    total, begin, found = sum(weights.values()), 0.0, {}
    for token_id in sorted(weights):
        end = begin + weights[token_id] / total
        found[token_id] = (begin, end)
        begin = end
    return found


def logit_gap(entry: TokenLogprob) -> float:
    """Between the two best."""
    return entry.top[0][2] - entry.top[1][2]


def draw_gap(entry: TokenLogprob, number: float) -> float:
    """From the random number to the nearest edge between two shares; or from the last token kept to the next."""
    edges = [end for _, end in shares(entry).values()][:-1]
    return min(*(abs(number - edge) for edge in edges), entry.top[TOP_K - 1][2] - entry.top[TOP_K][2])
