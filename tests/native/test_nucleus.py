"""Filters against transformers' warpers; draws against their distributions."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from llm_inference.native.nucleus import draw

#: 99.99 % quantile of the chi-square distribution is below dof + 4·sqrt(2·dof) + 11 (Wilson-Hilferty, rounded up).


def chi_square_bound(dof: int) -> float:
    return dof + 4 * math.sqrt(2 * dof) + 11


def scaled_logits(vocab_size: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    return logits - logits.max()


def reference(scaled: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Probabilities after transformers' warpers in its order."""
    scores = scaled[None].clone()
    nothing = torch.zeros(1, 1, dtype=torch.int64)
    if top_k:
        scores = TopKLogitsWarper(top_k)(nothing, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(nothing, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(nothing, scores)
    return torch.softmax(scores[0].double(), -1)


def drawn(
    scaled: torch.Tensor, top_k: int, top_p: float, min_p: float, uniforms: list[float], num_candidates: int = 256
) -> torch.Tensor:
    count = len(uniforms)
    rows = scaled.expand(count, -1).clone()
    return draw(rows, [top_k] * count, [top_p] * count, [min_p] * count, uniforms, num_candidates)


PARAMETERS = [
    (0, 1.0, 0.0),
    (5, 1.0, 0.0),
    (1, 1.0, 0.0),
    (0, 0.7, 0.0),
    (0, 0.01, 0.0),
    (0, 0.999, 0.0),
    (0, 1.0, 0.1),
    (20, 0.8, 0.05),
    (60, 0.95, 0.0),
    (1000, 0.9, 0.0),
    (0, 0.9, 1.0),
]


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), PARAMETERS)
@pytest.mark.parametrize("num_candidates", [4, 16, 256])
def test_inverse_of_the_reference_distribution(top_k: int, top_p: float, min_p: float, num_candidates: int) -> None:
    """The uniforms in the middle of each token's share must give that token, in the order of the ids."""
    scaled = scaled_logits(100)
    probabilities = reference(scaled, top_k, top_p, min_p)
    support = probabilities.nonzero().flatten()
    ends = probabilities[support].cumsum(0)
    middles = (ends - probabilities[support] / 2).tolist()
    tokens = drawn(scaled, top_k, top_p, min_p, middles, num_candidates)
    assert tokens.tolist() == support.tolist()


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (20, 0.9, 0.02), (0, 0.8, 0.0)])
def test_frequencies_by_chi_square(top_k: int, top_p: float, min_p: float) -> None:
    scaled = scaled_logits(40, seed=1, spread=1.0)
    probabilities = reference(scaled, top_k, top_p, min_p)
    count = 4000
    uniforms = torch.rand(count, generator=torch.Generator().manual_seed(2), dtype=torch.float64).tolist()
    observed = torch.bincount(drawn(scaled, top_k, top_p, min_p, uniforms), minlength=40).double()
    support = probabilities > 0
    assert not observed[~support].any()
    expected = probabilities[support] * count
    statistic = float(((observed[support] - expected) ** 2 / expected).sum())
    assert statistic < chi_square_bound(int(support.sum()) - 1)


def test_rows_of_all_kinds_side_by_side_equal_their_solo_draws() -> None:
    rows = torch.stack([scaled_logits(400, seed=seed) for seed in range(len(PARAMETERS))])
    uniforms = [(seed * 0.37) % 1 for seed in range(len(PARAMETERS))]
    columns = list(zip(*PARAMETERS, strict=True))
    together = draw(rows.clone(), *columns, uniforms, 32)
    for row, (top_k, top_p, min_p) in enumerate(PARAMETERS):
        for num_candidates in (2, 32, 400):
            alone = drawn(rows[row], top_k, top_p, min_p, [uniforms[row]], num_candidates)
            assert alone[0] == together[row]


def test_ties_at_the_edge_are_all_kept() -> None:
    scaled = torch.tensor([0.0, -1.0, -1.0, -1.0, -5.0])
    tokens = drawn(scaled, 2, 1.0, 0.0, [0.0, 0.5, 0.7, 0.9, 0.999], num_candidates=2)
    assert tokens.tolist() == [0, 1, 2, 3, 3]  # shares: 0.475, then 0.175 each


def test_forbidden_tokens_are_never_drawn() -> None:
    scaled = torch.full((50,), -math.inf)
    scaled[7], scaled[30] = 0.0, -0.5
    edges = [0.0, 0.3, 0.7, 1 - 2**-53]
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (10, 1.0, 0.0), (10, 0.95, 0.0), (0, 0.95, 0.01)):
        tokens = drawn(scaled, top_k, top_p, min_p, edges, num_candidates=8).tolist()
        assert tokens[0] == 7
        assert set(tokens) == {7, 30}


def test_extreme_scales_neither_overflow_nor_lose_the_best() -> None:
    scaled = scaled_logits(200, seed=3) * 1e12
    best = int(scaled.argmax())
    for top_k, top_p, min_p in PARAMETERS:
        assert set(drawn(scaled, top_k, top_p, min_p, [0.0, 0.5, 1 - 2**-53]).tolist()) == {best}
