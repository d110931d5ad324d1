"""Log-probabilities: the plain formula, finite whatever comes."""

from __future__ import annotations

import math

import torch

from llm_inference.native.logprobs import LOWEST, RawLogprobs


def test_values_and_best() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 30)
    expected = torch.log_softmax(logits.double(), -1)
    tokens = RawLogprobs(logits, 4, 30).tokens([2, 5, 29], [0, 2, 4])
    for row, (token, size) in enumerate(zip(tokens, [0, 2, 4], strict=True)):
        assert token.token_id == [2, 5, 29][row]
        assert token.logprob is not None
        assert math.isclose(token.logprob, expected[row, token.token_id], abs_tol=1e-6)
        assert [token_id for token_id, _ in token.top] == expected[row].topk(size).indices.tolist()
        assert all(math.isclose(value, expected[row, token_id], abs_tol=1e-6) for token_id, value in token.top)


def test_the_best_token_has_the_logprob_of_the_first_alternative() -> None:
    """Evaluation harnesses call a token greedy if these two floats are equal."""
    logits = torch.randn(20, 300)
    best = logits.argmax(-1).tolist()
    for token in RawLogprobs(logits, 1, 300).tokens(best, [1] * 20):
        assert token.top == ((token.token_id, token.logprob),)


def test_padding_counts_in_the_sum_but_is_not_listed() -> None:
    logits = torch.tensor([[1.0, 0.0, 2.0, 5.0]])
    (token,) = RawLogprobs(logits, 20, 3).tokens([0], [20])
    assert [token_id for token_id, _ in token.top] == [2, 0, 1]
    assert math.isclose(token.logprob or 0, torch.log_softmax(logits, -1)[0, 0], abs_tol=1e-6)


def test_never_infinite() -> None:
    logits = torch.tensor([[0.0, -math.inf, -1e30]])
    tokens = RawLogprobs(logits, 3, 3).tokens([1], [3])
    assert tokens[0].logprob == LOWEST
    assert [value for _, value in tokens[0].top] == [0.0, LOWEST, LOWEST]
