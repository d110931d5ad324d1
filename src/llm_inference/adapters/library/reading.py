"""From a worker's tokens to pieces of text: detokenized, the ending token taken off, log-probabilities named.

What the pieces become (stop strings, usage, deltas) is `generate_choice`'s business. No sockets.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.library.wire import Tokens, WorkerSampling
from llm_inference.engine.types import TokenLogprob
from llm_inference.text.tokenizer import Tokenizer


class TokenReader:
    """One sequence's. One piece for each token, so that each is judged by itself."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: tuple[int, ...],
        sampling: WorkerSampling,
        *,
        skip_special_tokens: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer(prompt_token_ids, skip_special_tokens=skip_special_tokens)
        self._stops = frozenset(sampling.stop_token_ids)
        self._num_tokens = 0

    def read(self, tokens: Tokens) -> Iterator[Piece]:
        entries = tokens.logprobs or ()
        last = len(tokens.ids) - 1 if tokens.finish_reason is not None else -1
        for place, token_id in enumerate(tokens.ids):
            self._num_tokens += 1
            entry = (self._named(token_id, *entries[place]),) if place < len(entries) else ()
            if place != last:
                yield self._piece(token_id, self._detokenizer.add((token_id,)), entry)
            elif tokens.finish_reason == "length":
                text = self._detokenizer.add((token_id,)) + self._detokenizer.flush()
                yield self._piece(token_id, text, entry, finish_reason="length")
            else:
                yield from self._ending(token_id, entry)

    def _ending(self, token_id: int, entry: tuple[TokenLogprob, ...]) -> Iterator[Piece]:
        """EOS is counted and never shown; a stop token is shown where the request wants it, which is decided later."""
        if token_id not in self._stops:
            yield Piece(
                text=self._detokenizer.flush(),
                completion_tokens=self._num_tokens,
                final=True,
                finish_reason="stop",
            )
            return
        text = self._detokenizer.add((token_id,)) + self._detokenizer.flush()
        yield self._piece(token_id, text, entry, finish_reason="stop")

    def _piece(
        self, token_id: int, text: str, entry: tuple[TokenLogprob, ...], *, finish_reason: str | None = None
    ) -> Piece:
        return Piece(
            text=text,
            token_ids=(token_id,),
            logprobs=entry,
            completion_tokens=self._num_tokens,
            final=finish_reason is not None,
            finish_reason=finish_reason,
        )

    def _named(self, token_id: int, value: float, best: tuple[tuple[int, float], ...]) -> TokenLogprob:
        name, raw = self._tokenizer.token_text, self._tokenizer.token_bytes
        return TokenLogprob(
            token_id=token_id,
            token=name(token_id),
            logprob=value,
            token_bytes=raw(token_id),
            top=tuple((other, name(other), logprob, raw(other)) for other, logprob in best),
        )
