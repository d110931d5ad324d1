"""The sampler as a whole: order of the steps, seeds, greedy, broken logits."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from llm_inference.errors import EngineError
from llm_inference.native.request import SampledToken, Sequence
from llm_inference.native.sampler import Sampler
from tests.native.sampling import make_sequence

CPU = torch.device("cpu")
VOCAB = 64


class ForbidAllBut:
    """A grammar's mask for one row."""

    def __init__(self, row: int, *allowed: int) -> None:
        self.row, self.allowed = row, list(allowed)

    def apply(self, logits: torch.Tensor) -> None:
        kept = logits[self.row, self.allowed].clone()
        logits[self.row] = -math.inf
        logits[self.row, self.allowed] = kept


def sampler(**options: int) -> Sampler:
    return Sampler(VOCAB, CPU, **{"seed": 0} | options)


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def ids(tokens: list[SampledToken]) -> list[int]:
    return [token.token_id for token in tokens]


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 5, "min_p": 0.1}, {"seed": 7}])
def test_tiny_temperatures_are_greedy(temperature: float, dtype: torch.dtype, options: dict[str, float]) -> None:
    """Case S1; the runner hands over float32, whatever the model computes in."""
    logits = random_logits(8).to(dtype).float()
    sequences = [make_sequence(temperature=temperature, **options) for _ in range(8)]
    assert ids(sampler().sample(logits.clone(), sequences)) == logits.argmax(-1).tolist()


def test_a_small_temperature_above_greedy_has_no_nan() -> None:
    logits = random_logits(4) * 1e4
    sequences = [make_sequence(temperature=0.002, top_p=0.9, top_k=3) for _ in range(4)]
    assert ids(sampler().sample(logits.clone(), sequences)) == logits.argmax(-1).tolist()


def test_distribution_of_the_whole_chain_equals_transformers() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, VOCAB)
    prompt = [3, 9]
    chain = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.5),
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
        ]
    )
    expected = torch.softmax(chain(torch.tensor([prompt]), logits.clone()), -1)[0].double()
    count = 3000
    sequences = [
        make_sequence(prompt, repetition_penalty=1.5, temperature=0.8, top_k=20, top_p=0.9) for _ in range(count)
    ]
    observed = torch.bincount(
        torch.tensor(ids(sampler().sample(logits.expand(count, -1).clone(), sequences))), minlength=VOCAB
    ).double()
    support = expected > 0
    assert not observed[~support].any()
    dof = int(support.sum()) - 1
    statistic = float(((observed - expected * count)[support] ** 2 / (expected[support] * count)).sum())
    assert statistic < dof + 4 * math.sqrt(2 * dof) + 11


def generate(target: Sequence, neighbours: list[Sequence], steps: int = 12) -> list[int]:
    """Sample `target` step by step, its logits a function of its own position, beside neighbours."""
    ours = sampler(seed=len(neighbours))
    for step in range(steps):
        rows = [random_logits(1, seed=step), *(random_logits(1, seed=99 + n) for n in range(len(neighbours)))]
        sequences = [target, *neighbours]
        order = list(range(len(sequences)))[:: -1 if step % 2 else 1]
        tokens = ours.sample(torch.cat([rows[i] for i in order]), [sequences[i] for i in order])
        for position, index in enumerate(order):
            sequences[index].token_ids.append(tokens[position].token_id)
    return target.token_ids


@pytest.mark.parametrize("options", [{}, {"top_p": 0.8}, {"top_k": 9, "repetition_penalty": 1.2}])
def test_a_seeded_sequence_ignores_its_neighbours(options: dict[str, float]) -> None:
    """Case S2."""

    def target() -> Sequence:
        return make_sequence([1], temperature=1.5, seed=11, **options)

    def company() -> list[Sequence]:
        return [
            make_sequence([2], temperature=1.0),
            make_sequence([3], temperature=0.0),
            make_sequence([4], temperature=1.0, top_k=2, seed=12),
            make_sequence([5], temperature=0.7, top_p=0.5, frequency_penalty=0.5),
        ]

    alone = generate(target(), [])
    assert generate(target(), company()) == alone
    assert generate(target(), company()[:1]) == alone
    assert generate(make_sequence([1], temperature=1.5, seed=12, **options), []) != alone


def test_choices_and_seeds_differ() -> None:
    logits = torch.zeros(1, VOCAB)
    texts = {
        tuple(
            sampler().sample(logits.clone(), [make_sequence([0], [1] * n, index=index, seed=seed)])[0].token_id
            for n in range(10)
        )
        for seed, index in ((1, 0), (1, 1), (2, 0), (-1, 0), (2**63, 0))
    }
    assert len(texts) == 5


def test_unseeded_draws_are_uniform_where_the_logits_are() -> None:
    count = 6400
    tokens = ids(sampler().sample(torch.zeros(count, VOCAB), [make_sequence() for _ in range(count)]))
    statistic = sum((tokens.count(token) - 100) ** 2 / 100 for token in range(VOCAB))
    assert statistic < 63 + 4 * math.sqrt(126) + 11


def test_seeded_draws_are_uniform_over_positions() -> None:
    ours = sampler()
    counts: Counter[int] = Counter()
    sequences = [make_sequence(seed=seed) for seed in range(64)]
    for _ in range(100):
        for sequence, token in zip(sequences, ours.sample(torch.zeros(64, VOCAB), sequences), strict=True):
            counts[token.token_id] += 1
            sequence.token_ids.append(token.token_id)
    statistic = sum((counts[token] - 100) ** 2 / 100 for token in range(VOCAB))
    assert statistic < 63 + 4 * math.sqrt(126) + 11


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random_logits(3)
    raw = torch.log_softmax(logits, -1)
    sequences = [
        make_sequence(temperature=0.0, logprobs=3, logit_bias={5: 1000.0}),
        make_sequence(temperature=0.0),
        make_sequence(temperature=0.5, logprobs=0, top_k=1),
    ]
    first, second, third = sampler().sample(logits.clone(), sequences)
    assert first.token_id == 5
    assert first.logprob == pytest.approx(float(raw[0, 5]), abs=1e-5)
    assert [token for token, _ in first.top] == raw[0].topk(3).indices.tolist()
    assert second == SampledToken(int(logits[1].argmax()))
    assert third.logprob == pytest.approx(float(raw[2].max()), abs=1e-5)
    assert third.top == ()


@pytest.mark.parametrize("options", [{"top_k": 1}, {"logit_bias": {3: -100.0}}, {"min_p": 1.0}])
def test_logprobs_stay_finite_beside_filters(options: dict[str, object]) -> None:
    """Case C4."""
    (token,) = sampler().sample(random_logits(1), [make_sequence(logprobs=20, **options)], ForbidAllBut(0, 3, 4))
    assert token.token_id in (3, 4)
    assert token.logprob is not None
    assert all(math.isfinite(value) for _, value in (*token.top, (0, token.logprob)))


def test_masks_come_after_penalties_and_before_the_draw() -> None:
    logits = random_logits(2)
    sequences = [make_sequence(temperature=0.0), make_sequence(temperature=1.0, logit_bias={8: 100.0})]
    tokens = sampler().sample(logits.clone(), sequences, ForbidAllBut(1, 6, 7))
    assert tokens[0].token_id == logits[0].argmax()
    assert tokens[1].token_id in (6, 7)


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300, 1.7e308])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.5}])
def test_huge_temperatures_keep_bans(temperature: float, options: dict[str, float]) -> None:
    """Float32 has no such number; what is forbidden stays so."""
    sequences = [make_sequence(temperature=temperature, seed=row, **options) for row in range(50)]
    masks = [ForbidAllBut(row, 6, 7) for row in range(50)]

    class All:
        def apply(self, logits: torch.Tensor) -> None:
            for mask in masks:
                mask.apply(logits)

    assert set(ids(sampler().sample(random_logits(50), sequences, All()))) == {6, 7}


@pytest.mark.parametrize("penalty", [1e-320, 1e-46, 1e-40, 1e-38, 1e-5, 100.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e300])
def test_the_smallest_penalties_give_a_token_and_no_nan(penalty: float, temperature: float) -> None:
    sequences = [
        make_sequence(list(range(20)), [3], temperature=temperature, seed=row, repetition_penalty=penalty, logprobs=2)
        for row in range(20)
    ]
    logits = random_logits(20)
    logits[:, 5] = 0.0
    seen = set(ids(sampler().sample(logits, sequences, ForbidAllBut(0, 6, 7))))
    assert seen <= set(range(VOCAB))
    assert torch.isfinite(logits[1:]).all()
    if penalty < 1e-5 and temperature < 1:
        assert seen <= set(range(20)), "a tiny penalty is a huge reward for what was seen"


def test_padding_of_the_vocabulary_is_never_sampled() -> None:
    logits = torch.zeros(200, VOCAB)
    logits[:, 60:] = 50.0
    sequences = [make_sequence(temperature=0.0 if row % 2 else 1.0, logprobs=20) for row in range(200)]
    tokens = sampler(num_valid_tokens=60).sample(logits, sequences)
    assert all(token.token_id < 60 for token in tokens)
    assert all(token_id < 60 for token in tokens for token_id, _ in token.top)


def test_logits_that_are_no_numbers_fail_their_own_request() -> None:
    for broken in (math.nan, math.inf):
        logits = random_logits(3)
        best = logits.argmax(-1).tolist()
        logits[1, 17] = broken
        sequences = [make_sequence(temperature=t, request_id=f"r{t}") for t in (0.0, 1.0, 0.0)]
        failures: dict[int, EngineError] = {}
        tokens = sampler().sample(logits.clone(), sequences, failures=failures)
        assert list(failures) == [1]
        assert "'r1.0'" in failures[1].message
        assert (tokens[0].token_id, tokens[2].token_id) == (best[0], best[2])
        with pytest.raises(EngineError, match=r"'r1\.0' is not a number"):
            sampler().sample(logits, sequences)


@pytest.mark.parametrize("broken", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperatures", [(0.0,) * 5, (1.0,) * 5, (0.0, 0.7, 0.0, 1.3, 0.0)])
def test_read_back_once_and_at_the_end_it_is_the_same(temperatures: tuple[float, ...], broken: float | None) -> None:
    """As on a GPU: nothing is looked at before the tokens."""
    results = []
    for deferred in (False, True):
        logits = random_logits(5)
        if broken is not None:
            logits[2] = -math.inf if broken < 0 else logits[2]
            logits[2, 9] = broken
        sequences = [
            make_sequence(temperature=temperature, seed=row, top_p=0.9 if row else 1.0, logprobs=2, min_tokens=3)
            for row, temperature in enumerate(temperatures)
        ]
        failures: dict[int, EngineError] = {}
        made = Sampler(VOCAB, CPU, num_valid_tokens=60, deferred=deferred)
        tokens = made.sample(logits, sequences, ForbidAllBut(4, 1, 2), failures=failures)
        results.append((tokens, [(row, str(error)) for row, error in failures.items()]))
    assert results[0] == results[1]
    assert [row for row, _ in results[1][1]] == ([] if broken is None else [2])
    with pytest.raises(EngineError, match="is not a number"):
        Sampler(VOCAB, CPU, deferred=True).sample(torch.full((1, VOCAB), math.nan), [make_sequence()])


def test_prompt_logprobs() -> None:
    logits = random_logits(4)
    raw = torch.log_softmax(logits, -1)
    tokens = sampler().prompt_logprobs(logits, [5, 6, 7, 8], 2)
    assert ids(tokens) == [5, 6, 7, 8]
    for row, token in enumerate(tokens):
        assert token.logprob == pytest.approx(float(raw[row, token.token_id]), abs=1e-5)
        assert [token_id for token_id, _ in token.top] == raw[row].topk(2).indices.tolist()
    assert sampler().prompt_logprobs(logits[:0], [], 2) == []
    assert sampler().prompt_logprobs(logits[:1], [5], 0)[0].top == ()


def test_forgotten_sequences_leave_nothing() -> None:
    ours = sampler()
    sequence = make_sequence(repetition_penalty=1.2)
    ours.sample(random_logits(1), [sequence])
    assert sequence in ours._penalties._counts
    ours.forget(sequence)
    assert not ours._penalties._counts
