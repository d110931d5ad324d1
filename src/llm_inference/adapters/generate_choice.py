"""From what an engine says to deltas: prompt stripped, stop strings held back, tokens counted, each choice ended once.

    Piece ─► prompt stripped ─► stop token ids ─► stop strings (hold-back) ─► tool calls, reasoning ─► Delta

A `Piece` is one engine's news in our words, made by that engine's adapter. No HTTP, no engine's protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from llm_inference.adapters.generate_prompt import PreparedPrompt
from llm_inference.engine.types import (
    Delta,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Timing,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from llm_inference.text.parsers.base import ParsedText
from llm_inference.text.parsing import PLAIN_TEXT, OutputFormat
from llm_inference.text.stop import StopChecker

#: More tokens than this are no count of one answer's.
MAX_COUNT = 2**40

#: The engines' words for why a choice ended. Any other word, and none, means: infer it from the token count.
_FINISH_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "abort": "abort",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is new of one choice. Counts are totals so far; None: not said.

    `text` is what is new of the text; `token_ids` the new tokens that it came from. `final`: nothing follows, and
    `finish_reason` is the engine's own word for why. What is said here comes from outside: making a piece of anything
    but texts and counts raises `TypeError`.
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    final: bool = False
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.text, str) and isinstance(self.reasoning, str)):
            raise TypeError("a text is no string")
        if not isinstance(self.finish_reason, str | None):
            raise TypeError("a finish reason is no word")
        for count in (self.prompt_tokens, self.completion_tokens, self.cached_tokens):
            if count is not None and not (type(count) is int and 0 <= count <= MAX_COUNT):
                raise TypeError("a count of tokens is none")
        if not all(isinstance(token_id, int) for token_id in self.token_ids):
            raise TypeError("a token id is no integer")


class Choice:
    """One choice while it grows. `count` tells how many tokens a text is, where the engine does not; None: unknown."""

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        *,
        count: Callable[[str], int] | None,
        prompts_to_strip: tuple[str, ...] = (),
        text_offset: int = 0,
        output: OutputFormat = PLAIN_TEXT,
    ) -> None:
        self.index = index
        self.finished = False
        self._sampling = sampling
        self._count = count
        self._prompts = tuple(sorted({prompt for prompt in prompts_to_strip if prompt}, key=len, reverse=True))
        self._pending = ""  # may yet turn out to be the prompt
        self._stops = StopChecker(sampling.stop, sampling.include_stop_str_in_output)
        self._offset = text_offset
        self._text: list[str] = []
        self._num_ids = 0
        self._reported: int | None = None
        self._called_tool = False
        self._parser = output.make_parser()
        self._reasoning: list[str] = []

    @property
    def num_tokens(self) -> int | None:
        """Tokens of the output as the engine counts them; None where it does not say."""
        return self._reported if self._reported is not None else self._num_ids or None

    def counted_tokens(self) -> int:
        """The same, counted by our tokenizer where the engine does not say."""
        if self.num_tokens is not None:
            return self.num_tokens
        return self._count("".join(self._text)) if self._count is not None else 0

    def counted_reasoning(self) -> int:
        """Tokens of the reasoning that was found in the output, counted by our tokenizer."""
        return self._count("".join(self._reasoning)) if self._count is not None else 0

    def feed(self, piece: Piece) -> Delta | None:
        """The delta that `piece` makes, or None while everything is held back. Call no more once `finished`."""
        self._num_ids += len(piece.token_ids)
        if piece.completion_tokens is not None:
            self._reported = piece.completion_tokens
        text = self._without_prompt(piece.text, final=piece.final)
        stop_id = next((i for i in piece.token_ids if i in self._sampling.stop_token_ids), None)
        token_ids = piece.token_ids
        if stop_id is not None and not self._sampling.include_stop_str_in_output:
            text, token_ids = "", token_ids[: token_ids.index(stop_id)]
        self._text.append(text)
        entries = piece.logprobs[: len(token_ids)] if stop_id is not None else piece.logprobs
        logprobs = self._placed(entries, len(text)) if self._sampling.logprobs is not None else None
        shown, matched = self._check_stop(text)
        finish_reason: FinishReason | None = None
        if matched is not None:
            finish_reason = "stop"
        elif stop_id is not None:
            shown, finish_reason = shown + self._stops.flush(), "stop"
        elif piece.final:
            shown, finish_reason = shown + self._stops.flush(), self._why(piece.finish_reason)
        stop_reason = matched if matched is not None else stop_id if stop_id is not None else piece.stop_reason
        parsed = self._parse(shown, final=finish_reason is not None)
        parsed += ParsedText("", piece.reasoning, piece.tool_calls)
        self._called_tool |= bool(parsed.tool_calls)
        if finish_reason is None and self._parser is not None and self._parser.is_complete:
            finish_reason = "stop"
        if finish_reason == "stop" and self._called_tool:
            finish_reason = "tool_calls"
        self.finished = finish_reason is not None
        if not (self.finished or parsed or logprobs or token_ids):
            return None
        return Delta(
            index=self.index,
            text=parsed.text,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _without_prompt(self, text: str, *, final: bool) -> str:
        """The text without the prompt that it may begin with; held while that is still open."""
        if not self._prompts:
            return text
        self._pending += text
        if not final and any(prompt.startswith(self._pending) for prompt in self._prompts):
            return ""
        whole = self._pending
        prompt = next((prompt for prompt in self._prompts if whole.startswith(prompt)), "")
        self._prompts, self._pending = (), ""
        return whole[len(prompt) :]

    def _check_stop(self, text: str) -> tuple[str, str | None]:
        """Stop strings count only in text that lies wholly after the first `min_tokens` tokens."""
        if self._sampling.min_tokens and self.counted_tokens() <= self._sampling.min_tokens:
            return text, None
        return self._stops.add(text)

    def _why(self, word: str | None) -> FinishReason:
        reason = _FINISH_REASONS.get(word)
        if reason is None:
            limit = self._sampling.max_tokens
            reason = "length" if limit is not None and self.counted_tokens() >= limit else "stop"
        return reason

    def _parse(self, text: str, *, final: bool) -> ParsedText:
        if self._parser is None:
            return ParsedText(text)
        parsed = self._parser.add(text)
        parsed = parsed + self._parser.finish() if final else parsed
        if parsed.reasoning:
            self._reasoning.append(parsed.reasoning)
        return parsed

    def _placed(self, logprobs: tuple[TokenLogprob, ...], num_chars: int) -> tuple[TokenLogprob, ...]:
        """With `text_offset` filled in."""
        placed, offset = [], self._offset
        for entry in logprobs:
            placed.append(msgspec.structs.replace(entry, text_offset=offset))
            offset += len(entry.token)
        self._offset += num_chars
        return tuple(placed)


class Answer:
    """The choices of one request. The prompt counts once, however many calls it was sent with."""

    def __init__(
        self,
        request: GenerateRequest,
        sampling: SamplingParams,
        prompt: PreparedPrompt | None,
        *,
        count: Callable[[str], int] | None,
        strips_prompt: bool,
    ) -> None:
        self._accepted_s = time.monotonic()
        self._first_s: float | None = None
        self._prompt = prompt
        self._echo = request.echo and prompt is not None
        shown = prompt.shown if prompt is not None else ""
        self.choices = [
            Choice(
                index,
                sampling,
                count=count,
                prompts_to_strip=(shown, prompt.text) if strips_prompt and prompt is not None else (),
                text_offset=len(shown) if self._echo else 0,
                output=prompt.output if prompt is not None else PLAIN_TEXT,
            )
            for index in range(sampling.n)
        ]
        self._opened: set[int] = set()
        self._sent_prompt_ids = False
        self._prompt_tokens = len(prompt.token_ids) if prompt is not None else 0
        self._cached_tokens = 0

    def has_opened(self, index: int) -> bool:
        """Whether anything at all came for choice `index`."""
        return index in self._opened

    def feed(self, index: int, piece: Piece) -> list[Delta]:
        """The deltas that news of choice `index` make; none once it has finished."""
        choice = self.choices[index]
        if choice.finished:
            return []
        if self._first_s is None:
            self._first_s = time.monotonic()
        if piece.prompt_tokens is not None:
            self._prompt_tokens = piece.prompt_tokens
        self._cached_tokens = max(self._cached_tokens, piece.cached_tokens or 0)
        deltas = []
        if self._echo and self._prompt is not None and index not in self._opened:
            deltas.append(Delta(index=index, text=self._prompt.shown, logprobs=piece.prompt_logprobs))
        self._opened.add(index)
        delta = choice.feed(piece)
        if delta is not None:
            deltas.append(self._annotated(delta))
        return deltas

    def _annotated(self, delta: Delta) -> Delta:
        finished = all(choice.finished for choice in self.choices)
        prompt_ids = None
        if not self._sent_prompt_ids and self._prompt is not None:
            prompt_ids = self._prompt.token_ids or None
        self._sent_prompt_ids = True
        usage = timing = None
        # Before the end only where it costs nothing: counting a growing text again and again would be quadratic.
        if finished or all(choice.num_tokens is not None for choice in self.choices):
            completion = sum(choice.counted_tokens() for choice in self.choices)
            # Once, at the end.
            reasoning = sum(choice.counted_reasoning() for choice in self.choices) if finished else 0
            usage = Usage(self._prompt_tokens, completion, self._cached_tokens, reasoning)
        if finished:
            now = time.monotonic()
            timing = Timing(ttft_s=(self._first_s or now) - self._accepted_s, total_s=now - self._accepted_s)
        return msgspec.structs.replace(delta, usage=usage, timing=timing, prompt_token_ids=prompt_ids)
