"""Which tokens may be drawn (top_k, top_p, min_p), and drawing one. Vectorized over rows; no requests, no state.

Everything is decided by a threshold on the scaled logit: a token that ties with the last one kept is kept too, so that
no sorting order decides. The draw walks the kept tokens in the order of their ids: it gives the same token whether the
candidates came from a partial or a full sort, and whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

#: Rows are first tried with this many of their best tokens; only where that is not provably enough all are sorted.
NUM_CANDIDATES: Final = 256


def draw(
    scaled: torch.Tensor,
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
    uniforms: Sequence[float],
    num_candidates: int = NUM_CANDIDATES,
) -> torch.Tensor:
    """One token id per row, int64 `[rows]`.

    scaled: float32 `[rows, vocab]`, logits divided by the temperature with each row's maximum at 0 (so nothing
    overflows); forbidden tokens are -inf. The parameters follow each other in transformers' order: top_k (0: off), then
    top_p on what top_k left, then min_p (relative to the best token). uniforms: in [0, 1).
    """
    num_rows, vocab_size = scaled.shape
    result = torch.empty(num_rows, dtype=torch.int64, device=scaled.device)
    filtered = [row for row in range(num_rows) if 0 < top_k[row] < vocab_size or top_p[row] < 1.0]
    plain = sorted(set(range(num_rows)) - set(filtered))
    if plain:
        index = torch.tensor(plain, device=scaled.device)
        rows = _take(scaled, plain)
        floor = _column([_log(min_p[row]) for row in plain], rows)
        weights = torch.exp(rows.to(torch.float64)).masked_fill_(rows < floor, 0.0)
        result[index] = _pick(weights, [uniforms[row] for row in plain])
    largest = num_candidates
    while filtered:
        size = min(max(largest, max(top_k[row] for row in filtered) + 1), vocab_size)
        index = torch.tensor(filtered, device=scaled.device)
        tokens, exact = _draw_candidates(
            _take(scaled, filtered),
            size,
            [top_k[row] for row in filtered],
            [top_p[row] for row in filtered],
            [min_p[row] for row in filtered],
            [uniforms[row] for row in filtered],
        )
        result[index] = tokens
        filtered = [row for row, is_exact in zip(filtered, exact, strict=True) if not is_exact]
        largest = vocab_size
    return result


def _draw_candidates(
    scaled: torch.Tensor,
    size: int,
    top_k: Sequence[int],
    top_p: Sequence[float],
    min_p: Sequence[float],
    uniforms: Sequence[float],
) -> tuple[torch.Tensor, list[bool]]:
    """Tokens, and whether the `size` best tokens held everything that is kept; where not, the token means nothing."""
    vocab_size = scaled.shape[1]
    values, ids = torch.topk(scaled, size, dim=-1)
    weights = torch.exp(values.to(torch.float64))
    # top_k: the value of the k-th best. Off: everything, and the mass is that of the whole vocabulary.
    limited = [0 < k < vocab_size for k in top_k]
    places = torch.tensor([k - 1 if on else 0 for k, on in zip(top_k, limited, strict=True)], device=scaled.device)
    is_limited = torch.tensor(limited, device=scaled.device)[:, None]
    threshold = values.gather(1, places[:, None]).masked_fill_(~is_limited, float("-inf"))
    kept_mass = weights.masked_fill(values < threshold, 0.0).sum(-1, keepdim=True)
    if not all(limited):
        whole = torch.exp(scaled).sum(-1, keepdim=True, dtype=torch.float64)
        kept_mass = torch.where(is_limited, kept_mass, whole)
    # top_p: a token is kept while the better ones together stay below p.
    share = _column([p if p < 1.0 else 2.0 for p in top_p], weights)
    better = weights.cumsum(-1) - weights
    num_kept = (better < share * kept_mass).sum(-1, keepdim=True).clamp_(min=1)
    threshold = torch.maximum(threshold, values.gather(1, num_kept - 1))
    last = values[:, -1]  # whatever is not among the candidates is at most this
    exact = ((threshold[:, 0] > last) | (last == float("-inf")) | (size == vocab_size)).tolist()
    threshold = torch.maximum(threshold, _column([_log(p) for p in min_p], values))
    weights.masked_fill_(values < threshold, 0.0)
    ids, order = ids.sort(-1)
    picked = _pick(weights.gather(1, order), uniforms)
    return ids.gather(1, picked[:, None])[:, 0], exact


def _pick(weights: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """Inverse of the cumulative distribution: `[rows]` indices into unnormalised float64 `weights [rows, n]`."""
    cumulative = weights.cumsum_(-1)
    target = cumulative[:, -1:] * _column(uniforms, cumulative)
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=weights.shape[1] - 1)


def _take(scaled: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return scaled if len(rows) == scaled.shape[0] else scaled[torch.tensor(rows, device=scaled.device)]


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else float("-inf")
