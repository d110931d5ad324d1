"""Drafts: the verdict keeps the model's distribution, seeds and rules; and drafts stop where they do not pay."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
import torch

from llm_inference.native.request import CoreRequest, Sequence
from llm_inference.native.sampler import Sampler
from llm_inference.native.speculation import MAX_ROWS, SpeculationSetup, Speculator, num_kept
from tests.native.cores import Outcome, make_core, make_request, run
from tests.native.sampling import make_sequence
from tests.native.scheduling import Harness
from tests.native.tiny_models import CPU, VOCAB_SIZE, TinyModel, save_tiny

SETUP = SpeculationSetup(num_tokens=4, max_ngram=3, min_ngram=1)


# --- the verdict


@pytest.mark.parametrize(
    ("drafted", "sampled", "kept"),
    [
        ([5], [5, 6], 2),
        ([5], [6, 7], 1),
        ([5, 6, 7], [5, 6, 7, 8], 4),
        ([5, 6, 7], [5, 6, 9, 8], 3),
        ([5, 6, 7], [9, 6, 7, 8], 1),
        ([], [3], 1),
    ],
)
def test_tokens_stand_up_to_the_first_that_differs(drafted: list[int], sampled: list[int], kept: int) -> None:
    assert num_kept(drafted, sampled) == kept


#: A language of four tokens: the chance of each after each.
CHANCES = torch.tensor(
    [[0.70, 0.15, 0.10, 0.05], [0.05, 0.05, 0.80, 0.10], [0.40, 0.30, 0.20, 0.10], [0.25, 0.25, 0.25, 0.25]]
)
LENGTH = 4


def generate(sampler: Sampler, count: int, drafts: dict[int, tuple[int, ...]], **sampling: Any) -> list[Sequence]:
    """`count` texts of `LENGTH` tokens or more; `drafts` says what is drafted after which token."""
    seeds = itertools.count()
    sequences = [make_sequence([0], seed=next(seeds) if sampling.get("seed") else None, **{
        key: value for key, value in sampling.items() if key != "seed"
    }) for _ in range(count)]  # fmt: skip
    while going := [s for s in sequences if s.num_output_tokens < LENGTH]:
        rows = [
            (sequence, drafts[sequence.token_ids[-1]][:length])
            for sequence in going
            for length in range(len(drafts[sequence.token_ids[-1]]) + 1)
        ]
        before = torch.tensor([(*sequence.token_ids, *drafted)[-1] for sequence, drafted in rows])
        drafted_rows = [drafted for _, drafted in rows]
        tokens = sampler.sample(CHANCES.log()[before], [s for s, _ in rows], drafted=drafted_rows)
        drawn = iter([token.token_id for token in tokens])
        for sequence in going:
            drafted = drafts[sequence.token_ids[-1]]
            sampled = list(itertools.islice(drawn, len(drafted) + 1))
            sequence.token_ids.extend(sampled[: num_kept(drafted, sampled)])
    return sequences


def chi_square(sequences: list[Sequence], chances: torch.Tensor) -> tuple[float, int]:
    """Of the first three tokens against their closed form, and the degrees of freedom."""
    counts = Counter(tuple(sequence.token_ids[1:4]) for sequence in sequences)
    statistic, num_cells = 0.0, 0
    for text in itertools.product(range(4), repeat=3):
        chance = 1.0
        for before, after in itertools.pairwise((0, *text)):
            chance *= float(chances[before, after])
        expected = chance * len(sequences)
        if expected == 0:
            assert counts[text] == 0
            continue
        num_cells += 1
        statistic += (counts[text] - expected) ** 2 / expected
    return statistic, num_cells - 1


DRAFTS = {0: (0, 0, 1), 1: (3,), 2: (1, 2), 3: ()}


def test_the_distribution_is_the_models_own() -> None:
    sampler = Sampler(4, CPU, seed=1)
    statistic, freedom = chi_square(generate(sampler, 4_000, DRAFTS, temperature=1.0), CHANCES)
    # A chi-square variable has the mean k and the variance 2k; the fourth standard deviation is beyond 1 in 10,000.
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_seeded_draws_have_it_too_and_equal_those_without_drafts() -> None:
    drafted = generate(Sampler(4, CPU), 4_000, DRAFTS, temperature=1.0, seed=True)
    statistic, freedom = chi_square(drafted, CHANCES)
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5
    plain = generate(Sampler(4, CPU), 1_000, dict.fromkeys(range(4), ()), temperature=1.0, seed=True)
    for ours, theirs in zip(drafted, plain, strict=False):
        assert ours.token_ids[: 1 + LENGTH] == theirs.token_ids[: 1 + LENGTH]


def test_a_cut_distribution_is_kept_as_cut() -> None:
    """top_k=2: the tokens that are left share the whole."""
    kept = CHANCES.clone()
    kept[3] = 0.25  # four equal ones: none is cut
    for before in range(3):
        worst = CHANCES[before].argsort()[:2]
        kept[before, worst] = 0.0
        if before == 1:
            kept[before] = torch.tensor([0.0, 0.0, 0.8, 0.1])
    kept /= kept.sum(-1, keepdim=True)
    statistic, freedom = chi_square(generate(Sampler(4, CPU, seed=2), 4_000, DRAFTS, temperature=1.0, top_k=2), kept)
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_the_measure_would_find_a_wrong_rule() -> None:
    """Accepting one draft in five unseen."""
    sequences = generate(Sampler(4, CPU, seed=1), 4_000, DRAFTS, temperature=1.0)
    for sequence in sequences[::5]:
        sequence.token_ids[1] = DRAFTS[0][0]
    statistic, freedom = chi_square(sequences, CHANCES)
    assert statistic > freedom + 4 * (2 * freedom) ** 0.5


# --- the whole core on a tiny model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


NUM_VARIED = 40


def looping_prompt(rng: random.Random) -> list[int]:
    stem = rng.choices(range(3, VOCAB_SIZE), k=rng.randint(2, 6))
    return (stem * 8)[: rng.randint(8, 24)]


def varied(number: int) -> CoreRequest:
    rng = random.Random(number)
    options: dict[str, Any] = [
        {},
        {"temperature": 0.4, "seed": number},
        {"temperature": 0.6, "seed": number, "top_k": 10, "top_p": 0.8, "n": 3},
        {"temperature": 0.5, "seed": number, "min_p": 0.02, "repetition_penalty": 1.1},
        {"n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"logprobs": 3},
        {"temperature": 0.4, "seed": number, "logit_bias": {5: 3.0, 8: 2.0}, "min_tokens": 9},
        {"temperature": 0.7, "seed": number, "stop_token_ids": (11, 30, 50, 77), "prompt_logprobs": 1},
        {"num_beams": 2, "n": 2},
        {"temperature": 0.3, "seed": number, "forced_eos_token_id": 2},
    ][number % 10]
    return make_request(str(number), looping_prompt(rng), max_tokens=rng.randint(1, 40), eos=(2, 7, 19, 23), **options)


@pytest.fixture(scope="module")
def alone(model: TinyModel) -> dict[str, list[Outcome]]:
    """Each request by itself, without speculation and without a prefix cache."""
    core = make_core(model, prefix_caching=False)
    return {str(number): run(core, [varied(number)])[str(number)] for number in range(NUM_VARIED)}


@pytest.mark.parametrize("limits", [{}, {"num_blocks": 48, "max_num_batched_tokens": 20}], ids=["room", "pressure"])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_every_request_says_the_same_with_and_without(
    model: TinyModel, alone: dict[str, list[Outcome]], limits: dict[str, int], prefix_caching: bool
) -> None:
    requests = [varied(number) for number in range(NUM_VARIED)]
    core = make_core(model, speculation=SETUP, prefix_caching=prefix_caching, **limits)
    together = run(core, requests)
    stats = core.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_drafted_tokens
    if limits:
        assert stats.num_preemptions > 0
    for request in requests:
        ours, expected = together[request.request_id], alone[request.request_id]
        assert [c.token_ids for c in ours] == [c.token_ids for c in expected], request.request_id
        assert [c.finish_reason for c in ours] == [c.finish_reason for c in expected]
        for a, b in itertools.chain(
            *(zip(x.tokens, y.tokens, strict=True) for x, y in zip(ours, expected, strict=True))
        ):
            assert a.logprob == (b.logprob if b.logprob is None else pytest.approx(b.logprob, abs=1e-4))
            assert [token_id for token_id, _ in a.top] == [token_id for token_id, _ in b.top]


def test_one_stream_takes_fewer_steps(model: TinyModel) -> None:
    request = make_request("r", [20] * 10, max_tokens=100)
    plain, drafting = make_core(model), make_core(model, speculation=SETUP)
    assert run(plain, [request])["r"][0].token_ids == run(drafting, [request])["r"][0].token_ids
    stats = drafting.stats()
    assert stats.num_steps == plain.stats().num_steps - stats.num_accepted_tokens < 90
    assert stats.generation_tokens == 100


def test_each_token_is_an_output_of_its_own(model: TinyModel) -> None:
    core = make_core(model, speculation=SETUP)
    core.add(make_request("r", [20] * 10, max_tokens=60))
    most = 0
    while core.has_work:
        outputs = core.step().outputs
        assert all(len(output.tokens) == 1 for output in outputs)
        assert [o.finish_reason for o in outputs[:-1]] == [None] * len(outputs[:-1])
        most = max(most, len(outputs))
    assert most > 1


def test_rows_behind_a_rejected_token_cannot_fail_a_request(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that overflows on a text which nobody asked for."""
    core = make_core(model, speculation=SETUP)
    request = make_request("r", [20] * 10, max_tokens=60)
    expected = run(make_core(model), [request])["r"][0].token_ids
    execute = core._runner.execute
    num_broken = 0

    def break_wrong_rows(step: Any) -> torch.Tensor:
        nonlocal num_broken
        logits = execute(step).clone()
        first = step.positions[step.logits_indices[0]]
        for row, index in enumerate(step.logits_indices[1:], 1):
            place = first + row - len(request.prompt_token_ids)
            if step.token_ids[index] != expected[place]:
                logits[row:] = float("nan")
                num_broken += 1
                break
        return logits

    monkeypatch.setattr(core._runner, "execute", break_wrong_rows)
    assert run(core, [request])["r"][0].token_ids == expected
    assert num_broken > 0


# --- when it pays


def drafting(text: list[int]) -> tuple[Speculator, Sequence]:
    return Speculator(SETUP), make_sequence(text, [text[0]])


def teach(speculator: Speculator, base_s: float, row_s: float) -> None:
    for number in range(200):
        speculator.observe_step(1 + number % 9, base_s + row_s * (1 + number % 9))


def test_success_makes_drafts_longer_and_failure_ends_them() -> None:
    speculator, sequence = drafting([1, 2, 3, 4, 5, 6] * 2)
    teach(speculator, 0.02, 0.003)
    lengths = []
    for _ in range(10):
        drafted = speculator.draft(sequence, 100, 1)
        lengths.append(len(drafted))
        speculator.learn(sequence, len(drafted), len(drafted))
    assert lengths[0] < lengths[-1] == SETUP.num_tokens
    while drafted := speculator.draft(sequence, 100, 1):
        lengths.append(len(drafted))
        speculator.learn(sequence, len(drafted), 0)
        assert len(lengths) < 100
    assert lengths[10:] == sorted(lengths[10:], reverse=True)
    assert lengths[-1] == 1


def test_trials_come_at_growing_distances_and_one_success_brings_drafts_back() -> None:
    speculator, sequence = drafting([1, 2, 3, 4, 5, 6] * 2)
    teach(speculator, 0.02, 0.01)
    steps = []
    for step in range(1, 1500):
        speculator.begin_step(1)
        drafted = speculator.draft(sequence, 100, 1)
        if drafted:
            steps.append(step)
            speculator.learn(sequence, len(drafted), 0)
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert gaps[-7:] == [32, 64, 128, 256, 256, 256, 256]
    assert all(step % 16 == 0 for step in steps[-6:])
    while not (drafted := speculator.draft(sequence, 100, 1)):
        speculator.begin_step(1)
    for _ in range(10):
        assert drafted
        speculator.learn(sequence, len(drafted), len(drafted))
        drafted = speculator.draft(sequence, 100, 1)
    assert len(drafted) > 1


def test_a_large_batch_drafts_less() -> None:
    """The same rate of acceptance, and tokens that cost more of what a step brings."""
    lengths = []
    for num_decoding in (1, 8, 32, MAX_ROWS):
        speculator, sequence = drafting([1, 2, 3, 4, 5, 6] * 2)
        for number in range(400):
            num_tokens = 1 + number % 70
            speculator.observe_step(num_tokens, 0.022 + 0.0018 * num_tokens)
        for _ in range(4):
            drafted = speculator.draft(sequence, 100, num_decoding)
            speculator.learn(sequence, len(drafted), len(drafted))
        speculator.learn(sequence, 4, 1)
        lengths.append(len(speculator.draft(sequence, 100, num_decoding)))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    assert [speculator.begin_step(n) for n in (1, MAX_ROWS, MAX_ROWS + 1)] == [MAX_ROWS - 1, 0, 0]


def test_a_new_sequence_starts_from_what_others_saw() -> None:
    first = []
    for share in (0, 1):
        speculator, sequence = drafting([1, 2, 3, 4] * 3)
        teach(speculator, 0.02, 0.002)
        for _ in range(30):
            drafted = speculator.draft(sequence, 100, 1)
            speculator.learn(sequence, len(drafted), share * len(drafted))
        first.append(len(speculator.draft(make_sequence([1, 2, 3, 4] * 3, [1]), 100, 1)))
    assert first[0] < first[1]


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"grammar": ("json", "{}")}, {"logits_processors": ("x",)}])
def test_what_cannot_be_wound_back_is_left_alone(options: dict[str, Any]) -> None:
    speculator = Speculator(SETUP)
    assert speculator.draft(make_sequence([1, 2] * 5, [1, 2]), 9, 1)
    assert speculator.draft(make_sequence([1, 2] * 5, [1, 2], **options), 9, 1) == ()
    assert speculator.draft(make_sequence([1, 2] * 5), 9, 1) == ()  # still a prompt


def test_without_a_setup_nothing_is_drafted() -> None:
    speculator = Speculator()
    assert speculator.begin_step(1) == 0
    assert speculator.draft(make_sequence([1, 2] * 5, [1, 2]), 9, 1) == ()


def test_what_is_forgotten_leaves_nothing() -> None:
    speculator, sequence = drafting([1, 2] * 5)
    speculator.draft(sequence, 4, 1)
    assert speculator._records
    speculator.forget(sequence)
    speculator.forget(sequence)
    assert not speculator._records


# --- in the schedule


def test_drafts_stop_before_the_last_token_that_is_allowed() -> None:
    harness = Harness(speculation=SETUP)
    harness.choose = lambda sequence: sequence.token_ids[len(sequence.token_ids) % 2]
    harness.add("r", [1, 2] * 3, max_tokens=5)
    assert harness.step() == {"r": 6}
    assert harness.step() == {"r": 4}  # one known, three of the four that are left
    assert harness.batch.scheduled[0].drafted == (2, 1, 2)
    assert harness.tokens("r") == [1, 2, 1, 2, 1]
    assert harness.finish_reasons("r") == ["length"]


def test_an_end_in_the_middle_of_a_draft_ends_there() -> None:
    harness = Harness(speculation=SETUP)
    harness.choose = lambda sequence: [1, 2, 3][len(sequence.token_ids) % 3]
    harness.add("r", [1, 2, 3] * 3, max_tokens=50, stop_token_ids=(3,))
    harness.run()
    assert harness.tokens("r") == [1, 2, 3]
    assert harness.finish_reasons("r") == ["stop"]
    assert harness.kv.num_free_blocks == harness.kv.num_blocks


def test_nobody_is_preempted_for_a_draft() -> None:
    harness = Harness(speculation=SETUP, num_blocks=4, block_size=4, enable_prefix_caching=False)
    harness.choose = lambda sequence: sequence.token_ids[len(sequence.token_ids) % 2]
    for name in ("a", "b"):
        harness.add(name, [1, 2, 1, 2, 1, 2], max_tokens=2)
    harness.run()
    assert harness.scheduler.num_preemptions == 0
    assert all(harness.finish_reasons(name) == ["length"] for name in ("a", "b"))
