"""A decoding rule: no n tokens in a row twice.

{"prompt": "…", "logits_processors": [{"name": "no_repeat_ngram", "args": {"size": 3}}]}
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class NoRepeatNgram:
    """The entry point `no_repeat_ngram`, called with the request's args once for each choice."""

    def __init__(self, size: int, *, include_prompt: bool = True) -> None:
        """A `ValueError` or `TypeError` becomes a 400 that shows its message."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a whole number of at least 1, not {size!r}")
        self._size = size
        self._include_prompt = include_prompt

    def __call__(self, token_ids: Sequence[int], num_prompt_tokens: int, logits: torch.Tensor) -> None:
        """Forbid every token that would complete an n-gram for the second time."""
        text = token_ids if self._include_prompt else token_ids[num_prompt_tokens:]
        prefix = self._size - 1
        if len(text) < prefix:
            return
        last = list(text[len(text) - prefix :])
        banned = {
            text[start + prefix] for start in range(len(text) - prefix) if list(text[start : start + prefix]) == last
        }
        if banned:
            logits[torch.tensor(sorted(banned), device=logits.device)] = float("-inf")
