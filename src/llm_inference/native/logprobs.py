"""Log-probabilities under the model's raw distribution: before penalties, bans and temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from llm_inference.native.request import SampledToken
from llm_inference.native.transfer import to_device

#: What a token of probability zero gets: JSON has no infinity.
LOWEST: Final = -9999.0


class RawLogprobs:
    """Log-probabilities of some rows, computed before their logits are changed."""

    def __init__(self, logits: torch.Tensor, num_top: int, num_valid_tokens: int) -> None:
        """`logits [rows, vocab]` float32 are copied. `num_top`: the most alternatives that any row wants.

        The distribution is over the whole row; alternatives are only listed below `num_valid_tokens`.
        """
        self._logprobs = torch.log_softmax(logits, dim=-1).clamp_(min=LOWEST)
        size = min(num_top, num_valid_tokens)
        if size:
            values, ids = torch.topk(self._logprobs[:, :num_valid_tokens], size, dim=-1)
            self._top_values: list[list[float]] = values.tolist()
            self._top_ids: list[list[int]] = ids.tolist()

    def tokens(self, token_ids: Sequence[int], num_top: Sequence[int]) -> list[SampledToken]:
        """Row i's token `token_ids[i]` with its log-probability and the `num_top[i]` best, best first."""
        ids = to_device(token_ids, self._logprobs.device)[:, None]
        chosen: list[float] = self._logprobs.gather(1, ids)[:, 0].tolist()
        return [
            SampledToken(token_id, logprob, self._top(row, count) if count else ())
            for row, (token_id, logprob, count) in enumerate(zip(token_ids, chosen, num_top, strict=True))
        ]

    def _top(self, row: int, count: int) -> tuple[tuple[int, float], ...]:
        return tuple(zip(self._top_ids[row][:count], self._top_values[row][:count], strict=True))
