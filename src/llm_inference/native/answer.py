"""One request's answer: its choices, from the core's outputs to deltas, with usage and timing. No sockets, no torch."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from llm_inference.engine.types import Delta, GenerateRequest, Timing, TokenLogprob, Usage
from llm_inference.errors import LLMInferenceError
from llm_inference.native.choice import Choice, describe
from llm_inference.native.client import Item
from llm_inference.native.messages import SequenceOutput
from llm_inference.native.prepare import Prepared
from llm_inference.native.request import SampledToken
from llm_inference.native.wire import PromptLogprobs
from llm_inference.text.tokenizer import Tokenizer


class Answer:
    """The choices of one request, from the core's outputs to deltas."""

    def __init__(
        self,
        request: GenerateRequest,
        prepared: Prepared,
        tokenizer: Tokenizer,
        accepted_s: float | None = None,
    ) -> None:
        self._request = request
        self._core_request = core_request = prepared.core_request
        self._tokenizer = tokenizer
        self._accepted_s = time.monotonic() if accepted_s is None else accepted_s
        self._echo_text = self._decode_prompt() if request.echo else ""
        self._choices = [
            Choice(
                index,
                # What is shown is what the client asked for, not what the core was asked for on behalf of best_of.
                msgspec.structs.replace(core_request.sampling, logprobs=request.sampling.logprobs),
                tokenizer,
                core_request.prompt_token_ids,
                prepared.output,
                len(self._echo_text),
            )
            for index in range(core_request.sampling.n)
        ]
        self._num_returned = request.sampling.n
        self._held: dict[int, list[Delta]] | None = {} if len(self._choices) > self._num_returned else None
        self._prompt_logprobs: list[SampledToken] = []
        self._echo_logprobs: tuple[TokenLogprob, ...] | None = None
        self._opened: set[int] = set()
        self._cached_tokens = 0
        self._first_scheduled_s: float | None = None
        self._first_token_s: float | None = None
        self._sent_prompt_ids = False
        self._to_abort: list[int] = []
        #: What ended the request early; the deltas that came before it are delivered first.
        self.error: LLMInferenceError | None = None

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self._choices)

    def prompt_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """An entry for every prompt token, once the prompt is computed; None where none were asked for."""
        if self._core_request.sampling.prompt_logprobs is None:
            return None
        first = SampledToken(self._core_request.prompt_token_ids[0])
        detokenizer = self._tokenizer.detokenizer((), skip_special_tokens=False)
        entries, offset = [], 0
        for token in (first, *self._prompt_logprobs):
            entries.append(describe(self._tokenizer, token, offset))
            offset += len(detokenizer.add((token.token_id,)))
        return tuple(entries)

    def stopped_by_text(self) -> list[int]:
        """Choices that ended on a stop string since the last call; the core still runs them."""
        indices, self._to_abort = self._to_abort, []
        return indices

    def take(self, items: Iterable[Item]) -> list[Delta]:
        """Deltas for what arrived. An error ends the request: it is raised once what came before it is delivered."""
        deltas: list[Delta] = []
        for item in items:
            if isinstance(item, PromptLogprobs):
                self._prompt_logprobs.extend(item.tokens)
            elif isinstance(item, LLMInferenceError):
                self.error = item
                break
            else:
                self._take_output(item, deltas)
        return self._release(deltas)

    def _take_output(self, output: SequenceOutput, deltas: list[Delta]) -> None:
        choice = self._choices[output.index]
        if choice.finished:  # tokens that were under way when a stop string ended it
            return
        self._cached_tokens = max(self._cached_tokens, output.num_cached_tokens)
        if self._first_scheduled_s is None:
            self._first_scheduled_s = output.first_scheduled_s
        if self._first_token_s is None:
            self._first_token_s = time.monotonic()
        if self._request.echo and output.index not in self._opened:
            deltas.append(self._echo(output.index))
        self._opened.add(output.index)
        delta = choice.feed(output.tokens, output.finish_reason, output.stop_reason)
        if delta is None:
            return
        if choice.stopped_by_text:
            self._to_abort.append(output.index)
        deltas.append(self._annotate(delta))

    def _annotate(self, delta: Delta) -> Delta:
        timing = None
        if self.finished:
            now = time.monotonic()
            timing = Timing(
                queue_s=max((self._first_scheduled_s or now) - self._accepted_s, 0.0),
                ttft_s=(self._first_token_s or now) - self._accepted_s,
                total_s=now - self._accepted_s,
            )
        prompt_ids = None if self._sent_prompt_ids else self._core_request.prompt_token_ids
        self._sent_prompt_ids = True
        return msgspec.structs.replace(delta, usage=self._usage(), timing=timing, prompt_token_ids=prompt_ids)

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self._core_request.prompt_token_ids),
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            cached_tokens=max(self._cached_tokens, 0),
            reasoning_tokens=sum(choice.num_reasoning_tokens for choice in self._choices),
        )

    def _decode_prompt(self) -> str:
        if isinstance(self._request.prompt, str):
            return self._request.prompt
        return self._tokenizer.decode(
            self._core_request.prompt_token_ids, skip_special_tokens=self._request.sampling.skip_special_tokens
        )

    def _echo(self, index: int) -> Delta:
        """The prompt as the first delta of a choice, with its log-probabilities where they were asked for."""
        if self._echo_logprobs is None:  # one for all choices: it may be megabytes
            self._echo_logprobs = self.prompt_logprobs()
        return Delta(index=index, text=self._echo_text, logprobs=self._echo_logprobs)

    def _release(self, deltas: list[Delta]) -> list[Delta]:
        """best_of: keep everything back until the best are known, then renumber them."""
        if self._held is None:
            return deltas
        for delta in deltas:
            self._held.setdefault(delta.index, []).append(delta)
        if not self.finished:
            return []
        mean = {c.index: c.cumulative_logprob / max(c.num_tokens, 1) for c in self._choices}
        best = sorted(self._held, key=lambda index: mean[index], reverse=True)[: self._num_returned]
        released = [
            msgspec.structs.replace(delta, index=rank, usage=None)
            for rank, index in enumerate(best)
            for delta in self._held[index]
        ]
        last = msgspec.structs.replace(released[-1], usage=self._usage())
        return [*released[:-1], last]
