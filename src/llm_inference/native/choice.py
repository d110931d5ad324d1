"""From a choice's tokens to its deltas: detokenize, find stop strings, parse tool calls and reasoning.

    tokens ─► detokenizer ─► stop strings (hold-back) ─► output parser ─► Delta

The token that ends a choice (EOS, a stop id) is counted and never shown. No tensors, no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

from llm_inference.engine.types import Delta, FinishReason, SamplingParams, TokenLogprob
from llm_inference.native.request import SampledToken
from llm_inference.text.parsers.base import ParsedText
from llm_inference.text.parsing import PLAIN_TEXT, OutputFormat
from llm_inference.text.stop import StopChecker
from llm_inference.text.tokenizer import Tokenizer


class Choice:
    """The text side of one choice. `feed` until `finished`."""

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        output: OutputFormat = PLAIN_TEXT,
        text_offset: int = 0,
    ) -> None:
        self.index = index
        self.finished = False
        #: Set when a stop string ended the choice, which the core cannot know: it must be told to abort.
        self.stopped_by_text = False
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.cumulative_logprob = 0.0
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._parser = output.make_parser()
        skip_special = sampling.skip_special_tokens and not output.keeps_special_tokens
        self._detokenizer = tokenizer.detokenizer(prompt_token_ids, skip_special_tokens=skip_special)
        self._stops = StopChecker(sampling.stop, sampling.include_stop_str_in_output) if sampling.stop else None
        self._text_offset = text_offset

    def feed(
        self, tokens: Sequence[SampledToken], finish_reason: FinishReason | None, stop_reason: int | None
    ) -> Delta | None:
        """The delta that `tokens` make, or None while everything is held back. Call no more once `finished`."""
        shown = list(tokens)
        if finish_reason == "stop" and not (stop_reason is not None and self._sampling.include_stop_str_in_output):
            shown.pop()
        text = ""
        matched: str | None = None
        logprobs: list[TokenLogprob] = []
        token_ids: list[int] = []
        for token in shown:
            self.num_tokens += 1
            token_ids.append(token.token_id)
            if token.logprob is not None:
                self.cumulative_logprob += token.logprob
                if self._sampling.logprobs is not None:
                    logprobs.append(describe(self._tokenizer, token, self._text_offset))
            piece = self._detokenizer.add((token.token_id,))
            self._text_offset += len(piece)
            emitted, matched = self._check_stop(piece)
            text += emitted
            if matched is not None:
                break
        self.num_tokens += len(tokens) - len(shown)
        if self._parser is not None and self._parser.in_reasoning:
            self.num_reasoning_tokens += len(tokens)
        if matched is not None:
            self.stopped_by_text = finish_reason is None
            finish_reason = "stop"
        elif finish_reason is not None:
            text += self._flush()
        parsed = self._parse(text, final=finish_reason is not None)
        if finish_reason is None and self._parser is not None and self._parser.is_complete:
            self.stopped_by_text = True
            finish_reason = "stop"
        if finish_reason is not None:
            self.finished = True
            if finish_reason == "stop" and self._parser is not None and self._parser.saw_tool_call:
                finish_reason = "tool_calls"
        elif not (parsed.text or parsed.reasoning or parsed.tool_calls or logprobs or token_ids):
            return None
        return Delta(
            index=self.index,
            text=parsed.text,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs) if self._sampling.logprobs is not None else None,
            finish_reason=finish_reason,
            stop_reason=matched if matched is not None else stop_reason,
        )

    def _check_stop(self, piece: str) -> tuple[str, str | None]:
        """Stop strings count only in text that lies wholly after the first `min_tokens` tokens."""
        if self._stops is None or self.num_tokens <= self._sampling.min_tokens:
            return piece, None
        return self._stops.add(piece)

    def _flush(self) -> str:
        tail = self._detokenizer.flush()
        if self._stops is None:
            return tail
        emitted, matched = self._stops.add(tail)
        return emitted if matched is not None else emitted + self._stops.flush()

    def _parse(self, text: str, *, final: bool) -> ParsedText:
        if self._parser is None:
            return ParsedText(text=text)
        parsed = self._parser.add(text)
        return parsed + self._parser.finish() if final else parsed


def describe(tokenizer: Tokenizer, token: SampledToken, text_offset: int) -> TokenLogprob:
    """A token and its alternatives with their texts. `text_offset` counts characters before it."""
    return TokenLogprob(
        token_id=token.token_id,
        token=tokenizer.token_text(token.token_id),
        logprob=token.logprob,
        token_bytes=tokenizer.token_bytes(token.token_id),
        top=tuple(
            (token_id, tokenizer.token_text(token_id), logprob, tokenizer.token_bytes(token_id))
            for token_id, logprob in token.top
        ),
        text_offset=text_offset,
    )
