"""Penalties against transformers' processors and their formulas (case S3)."""

from __future__ import annotations

import pytest
import torch
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from llm_inference.native.penalties import Penalties, TokenCounts
from llm_inference.native.request import Sequence
from tests.native.sampling import make_sequence

VOCAB = 50


def applied(sequences: list[Sequence], logits: torch.Tensor, penalties: Penalties | None = None) -> torch.Tensor:
    result = logits.clone()
    (penalties or Penalties()).apply(result, sequences)
    return result


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_equals_transformers_from_the_first_token(penalty: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, VOCAB)
    prompts = [[1, 2, 3, 3], [9], list(range(40))]
    outputs: list[list[int]] = [[], [5, 5, 9], [45, 1]]
    sequences = [make_sequence(p, o, repetition_penalty=penalty) for p, o in zip(prompts, outputs, strict=True)]
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = torch.cat(
        [
            processor(torch.tensor([p + o]), logits[row : row + 1].clone())
            for row, (p, o) in enumerate(zip(prompts, outputs, strict=True))
        ]
    )
    torch.testing.assert_close(applied(sequences, logits), expected)


def test_presence_and_frequency_count_the_output_only() -> None:
    logits = torch.zeros(1, VOCAB)
    sequence = make_sequence([7, 7, 8], [8, 9, 9, 9], presence_penalty=0.5, frequency_penalty=0.25)
    expected = torch.zeros(1, VOCAB)
    expected[0, 8] = -0.5 - 0.25
    expected[0, 9] = -0.5 - 3 * 0.25
    torch.testing.assert_close(applied([sequence], logits), expected)


def test_state_grows_with_the_sequence_and_is_forgotten() -> None:
    penalties = Penalties()
    logits = torch.ones(1, VOCAB)
    sequence = make_sequence([1], [], frequency_penalty=1.0, repetition_penalty=2.0)
    seen: list[int] = []
    for token in (3, 4, 3, *range(VOCAB), 3):
        result = applied([sequence], logits, penalties)[0]
        for candidate in range(VOCAB):
            base = 0.5 if candidate == 1 or candidate in seen else 1.0
            assert result[candidate] == base - seen.count(candidate)
        sequence.token_ids.append(token)
        seen.append(token)
    assert sequence in penalties._counts
    penalties.forget(sequence)
    penalties.forget(sequence)
    assert not penalties._counts


def test_counts_grow_past_their_first_size() -> None:
    counts = TokenCounts()
    counts.update(make_sequence(list(range(500)), [499, 7, 7]))
    assert counts.ids.tolist() == list(range(500))
    assert counts.counts[7] == 2
    assert counts.counts[499] == 1
    assert counts.counts.sum() == 3


def test_logit_bias_touches_its_own_row() -> None:
    logits = torch.zeros(2, VOCAB)
    sequences = [make_sequence(logit_bias={3: 5.0, 4: -100.0}), make_sequence()]
    expected = torch.zeros(2, VOCAB)
    expected[0, 3], expected[0, 4] = 5.0, -100.0
    assert torch.equal(applied(sequences, logits), expected)


@pytest.mark.parametrize("num_output", [0, 2, 3, 4])
def test_min_tokens_equals_transformers(num_output: int) -> None:
    logits = torch.randn(1, VOCAB)
    prompt, output = [1, 2], [5] * num_output
    sequence = make_sequence(prompt, output, min_tokens=3, eos_token_ids=(10, 11))
    processor = MinNewTokensLengthLogitsProcessor(2, 3, [10, 11], device="cpu")
    assert torch.equal(applied([sequence], logits), processor(torch.tensor([prompt + output]), logits.clone()))
    assert Penalties.concern(sequence) == (num_output < 3)


def test_min_tokens_bans_stop_ids_and_leaves_an_ignored_eos() -> None:
    sequence = make_sequence(min_tokens=2, stop_token_ids=(4,), ignore_eos=True, eos_token_ids=(10,))
    result = applied([sequence], torch.zeros(1, VOCAB))
    assert result[0].isneginf().nonzero().flatten().tolist() == [4]


def test_who_is_concerned() -> None:
    assert not Penalties.concern(make_sequence(repetition_penalty=1.0, presence_penalty=0.0, logit_bias={}))
    assert Penalties.concern(make_sequence(repetition_penalty=1.1))
    assert Penalties.concern(make_sequence(presence_penalty=-0.1))
    assert Penalties.concern(make_sequence(frequency_penalty=0.1))
    assert Penalties.concern(make_sequence(logit_bias={1: 1.0}))
