"""Which tokens may be drawn (top_k, top_p, min_p), and drawing one. Vectorized over rows; no requests, no state.

Everything is decided by a threshold on the scaled logit: a token that ties with the last one kept is kept too, so that
no sorting order decides. The draw walks the kept tokens in the order of their ids: it gives the same token whether the
candidates came from a partial or a full sort, and whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from llm_inference.native.transfer import to_device

#: Filtered rows are first tried with this many of their best tokens; all are sorted only if that is not enough.
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
    floor = _column([_log(p) for p in min_p], scaled)
    filtered = [row for row in range(num_rows) if 0 < top_k[row] < vocab_size or top_p[row] < 1.0]
    if filtered:
        rows, limits = _take(scaled, filtered), _Limits.of(filtered, top_k, top_p, vocab_size)
        size = min(max(num_candidates, max(limits.top_k) + 1), vocab_size)
        mass = None if all(limits.top_k) else torch.exp(rows).sum(-1, keepdim=True).double()
        values, ids = torch.topk(rows, size, dim=-1)
        threshold = _threshold(values, mass, limits)
        last = values[:, -1:]  # whatever is not among the candidates is at most this
        exact: list[bool] = ((threshold > last) | (last == float("-inf")) | (size == vocab_size))[:, 0].tolist()
        kept = torch.maximum(threshold, _take(floor, filtered))
        ids, order = ids.sort(-1)
        weights = torch.exp(values).masked_fill_(values < kept, 0.0).gather(1, order)
        picked = _pick(weights, [uniforms[row] for row in filtered])
        result[to_device(filtered, scaled.device)] = ids.gather(1, picked[:, None])[:, 0]
        filtered = [row for row, is_exact in zip(filtered, exact, strict=True) if is_exact]
    left = sorted(set(range(num_rows)) - set(filtered))
    if left:
        rows = _take(scaled, left)
        limits = _Limits.of(left, top_k, top_p, vocab_size)
        kept = _take(floor, left)
        if limits:  # too flat for the candidates: the cut needs all values in order
            mass = torch.exp(rows).sum(-1, keepdim=True).double()
            kept = torch.maximum(kept, _threshold(_descending(rows), mass, limits))
        weights = torch.exp(rows).masked_fill_(rows < kept, 0.0)
        result[to_device(left, scaled.device)] = _pick(weights, [uniforms[row] for row in left])
    return result


@dataclass(frozen=True, slots=True)
class _Limits:
    """top_k (0: off) and top_p (2: off) of some rows. False if none limits anything."""

    top_k: list[int]
    top_p: list[float]

    @classmethod
    def of(cls, rows: list[int], top_k: Sequence[int], top_p: Sequence[float], vocab_size: int) -> _Limits:
        return cls(
            [top_k[row] if 0 < top_k[row] < vocab_size else 0 for row in rows],
            [top_p[row] if top_p[row] < 1.0 else 2.0 for row in rows],
        )

    def __bool__(self) -> bool:
        return any(self.top_k) or min(self.top_p) < 1.0


def _threshold(values: torch.Tensor, mass: torch.Tensor | None, limits: _Limits) -> torch.Tensor:
    """The lowest logit that top_k and top_p keep, `[rows, 1]`, from the best `values`, descending.

    mass: of each whole row, float64 `[rows, 1]`; None if top_k limits every row.
    """
    is_limited = to_device([k > 0 for k in limits.top_k], values.device)[:, None]
    places = to_device([max(k - 1, 0) for k in limits.top_k], values.device)[:, None]
    threshold = values.gather(1, places).masked_fill_(~is_limited, float("-inf"))
    if min(limits.top_p) >= 1.0:
        return threshold
    weights = torch.exp(values).double()
    kept_mass = weights.masked_fill(values < threshold, 0.0).sum(-1, keepdim=True)
    if mass is not None:
        kept_mass = torch.where(is_limited, kept_mass, mass)
    # top_p keeps a token while the better ones together stay below p.
    better = weights.cumsum(-1) - weights
    num_kept = (better < _column(limits.top_p, weights) * kept_mass).sum(-1, keepdim=True).clamp_(min=1)
    # All that were looked at: so this limits nothing, or (with top_p) shows that they were too few.
    return torch.maximum(threshold, values.gather(1, num_kept - 1))


def _descending(rows: torch.Tensor) -> torch.Tensor:
    """Each row's values, best first. On a CPU by numpy, whose vectorized sort is an order of magnitude faster."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sort(-rows.numpy(), axis=-1)).neg_()
    return rows.sort(-1, descending=True).values


def _pick(weights: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """Inverse of the cumulative distribution: `[rows]` indices into unnormalised `weights [rows, n]`."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    target = cumulative[:, -1:] * _column(uniforms, cumulative)
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=weights.shape[1] - 1)


def _take(scaled: torch.Tensor, rows: list[int]) -> torch.Tensor:
    return scaled if len(rows) == scaled.shape[0] else scaled[to_device(rows, scaled.device)]


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return to_device(values, like.device, like.dtype)[:, None]


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else float("-inf")
