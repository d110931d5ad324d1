"""One token from the logits of one position, as the request wants it. Standard library and numpy only.

In the native engine's order: penalties and bias, then what is barred, then temperature, then the nucleus (top_k,
then top_p on what is left, then min_p), then one draw. Log-probabilities are of the model's own distribution, before
all of that.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

#: Temperatures below this take the likeliest token.
GREEDY_BELOW = 1e-5
#: Smaller ones would make infinities.
_MIN_PENALTY = 1e-6


class TokenSampler:
    """One sequence's. `sampling` is the message's; `add` each token of the output, in order."""

    def __init__(self, sampling: dict[str, Any], prompt: list[int]) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling["seed"])
        self._seen = set(prompt)
        self._output: Counter[int] = Counter()
        self._num_tokens = 0
        #: Tokens that end the output.
        self.ends = {*sampling["stop_token_ids"], *(() if sampling["ignore_eos"] else sampling["eos_token_ids"])}
        bias = {int(token): value for token, value in sampling["logit_bias"].items()}
        self._biased = np.array(list(bias), dtype=np.int64)
        self._bias = np.array(list(bias.values()), dtype=np.float32)

    def choose(self, logits: Logits) -> int:
        """The next token. `logits` is one position's, and left as it is."""
        sampling = self._sampling
        forced = sampling["forced_eos_token_id"]
        if forced is not None and self._num_tokens == sampling["max_tokens"] - 1:
            return int(forced)
        scores = self._steered(logits.astype(np.float32))
        temperature = sampling["temperature"]
        if temperature < GREEDY_BELOW:
            return int(scores.argmax())
        return self._draw(scores / np.float32(temperature))

    def add(self, token: int) -> None:
        self._seen.add(token)
        self._output[token] += 1
        self._num_tokens += 1

    def _steered(self, scores: Logits) -> Logits:
        """Mutates and returns `scores`."""
        sampling = self._sampling
        if sampling["repetition_penalty"] != 1.0:
            seen = np.fromiter(self._seen, dtype=np.int64)
            old = scores[seen]
            penalty = np.float32(max(sampling["repetition_penalty"], _MIN_PENALTY))
            scores[seen] = np.where(old > 0, old / penalty, old * penalty)
        if self._output and (sampling["presence_penalty"] or sampling["frequency_penalty"]):
            tokens = np.fromiter(self._output, dtype=np.int64)
            counts = np.fromiter(self._output.values(), dtype=np.float32)
            scores[tokens] -= sampling["presence_penalty"] + sampling["frequency_penalty"] * counts
        if len(self._biased):
            scores[self._biased] += self._bias
        if self._num_tokens < sampling["min_tokens"] and self.ends:
            scores[list(self.ends)] = -np.inf
        return scores

    def _draw(self, scores: Logits) -> int:
        sampling = self._sampling
        top_k = sampling["top_k"]
        is_cut = 0 < top_k < len(scores)
        kept = np.argpartition(-scores, top_k - 1)[:top_k] if is_cut else np.arange(len(scores))
        weights = np.exp(scores[kept].astype(np.float64) - float(scores.max()))
        weights /= weights.sum()
        if sampling["top_p"] < 1.0:
            order = np.argsort(-weights, kind="stable")
            total = weights[order].cumsum()
            # The token that crosses the bound belongs to the nucleus.
            order = order[: int(np.searchsorted(total, sampling["top_p"] * total[-1])) + 1]
            kept, weights = kept[order], weights[order]
        if sampling["min_p"] > 0:
            enough = weights >= sampling["min_p"] * weights.max()
            kept, weights = kept[enough], weights[enough]
        place = int(np.searchsorted(weights.cumsum(), self._random.random() * weights.sum(), side="right"))
        return int(kept[min(place, len(kept) - 1)])


def log_probabilities(logits: Logits, token: int, num_best: int) -> list[Any]:
    """`[log p(token), [[id, log p], … best first]]`."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    best: list[list[Any]] = []
    if num_best:
        candidates = np.argpartition(-wide, min(num_best, len(wide) - 1))[:num_best]
        best = [[int(i), float(wide[i])] for i in candidates[np.argsort(-wide[candidates], kind="stable")]]
    return [max(float(wide[token]), -1e9), best]
