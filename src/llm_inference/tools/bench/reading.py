"""From the bytes of one streamed answer to its timeline: which of them are tokens, when they came, how it ended.

A pure state machine: it is told the times and opens no connection, so that tests can play any stream to it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llm_inference.tools.bench.sse import EventReader
from llm_inference.tools.bench.timeline import Arrival, Counting, Failure, Timeline

_MAX_DETAIL = 300


class _TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def words(self) -> str:
        """The answer's own text in this chunk; neither reasoning nor calls."""
        said = self.text or (self.delta.content if self.delta is not None else None)
        return said if isinstance(said, str) else ""

    @property
    def says_something(self) -> bool:
        delta = self.delta
        return bool(
            self.text or (delta and (delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls))
        )


class _Chunk(msgspec.Struct):
    """Of either endpoint; fields that are not named here are not decoded."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None  # of an error without an envelope


_decoder = msgspec.json.Decoder(_Chunk)


def clipped(text: str) -> str:
    """`text` on one line, short enough to be shown."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_DETAIL else line[: _MAX_DETAIL - 1] + "…"


def error_message(error: Any) -> str:
    """What an error body says, in whichever of the usual shapes."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        message = inner.get("message") if isinstance(inner, dict) else inner
        error = message if message is not None else error
    return clipped(error if isinstance(error, str) else msgspec.json.encode(error).decode())


class StreamReading:
    """One answer being read. `feed` every read of the network, then `end`, or `fail` where the connection did.

    Tokens are counted by the usage of each chunk if already the first chunk with a token has one; otherwise every
    chunk that says something counts as one token. Usage that comes at the end alone gives the totals in either case.
    `keep_text`: `text` is what has been said so far.
    """

    def __init__(self, *, keep_text: bool = False) -> None:
        self._texts: list[str] | None = [] if keep_text else None
        self._events = EventReader()
        self._arrivals: list[Arrival] = []
        self._counting: Counting | None = None
        self._num_counted = 0
        self._usage = _Usage()
        self._finish_reason: str | None = None
        self._failure: Failure | None = None
        self.done = False  # nothing more is to come: [DONE], or an error

    @property
    def num_tokens(self) -> int:
        """Tokens that have come, as they are counted chunk by chunk."""
        return self._num_counted

    @property
    def text(self) -> str:
        return "".join(self._texts or ())

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what one read brought at `now_s`. What follows an error or [DONE] is not looked at."""
        before = self._num_counted
        for event in self._events.feed(data):
            if self.done:
                break
            if event == b"[DONE]":
                self.done = True
            else:
                self._take(event)
        if self._num_counted > before:
            self._arrivals.append(Arrival(now_s, self._num_counted - before))

    def fail(self, kind: str, detail: str, status: int | None = None) -> None:
        """The request failed. The first failure is the one that is kept."""
        self.done = True
        self._failure = self._failure or Failure(kind, clipped(detail), status)

    def end(
        self,
        *,
        index: int,
        scheduled_s: float,
        sent_s: float,
        ended_s: float,
        planned_input_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> Timeline:
        """The timeline. An answer without a finish reason or without a token is a failure."""
        told = self._usage.completion_tokens
        if self._finish_reason is None:
            self.fail("truncated", "the stream ended before its finish_reason")
        elif not self._arrivals:
            self.fail("empty_answer", f"the answer finished ({self._finish_reason}) without a single token")
        details = self._usage.prompt_tokens_details
        return Timeline(
            index=index,
            scheduled_s=scheduled_s,
            sent_s=sent_s,
            ended_s=ended_s,
            arrivals=tuple(self._arrivals),
            counting=self._counting or "chunks",
            planned_input_tokens=planned_input_tokens,
            max_tokens=max_tokens,
            input_tokens=self._usage.prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            output_tokens=self._num_counted if told is None else told,
            usage_told=told is not None,
            finish_reason=self._finish_reason,
            failure=self._failure,
        )

    def _take(self, event: bytes) -> None:
        try:
            chunk = _decoder.decode(event)
        except msgspec.MsgspecError as error:
            self.fail("malformed", f"a chunk is not what the API says ({error}): {event[:100]!r}")
            return
        if chunk.error is not None or chunk.object == "error":
            self.fail("error_event", error_message(chunk.error if chunk.error is not None else chunk.message))
            return
        says_something = False
        for choice in chunk.choices:
            says_something = says_something or choice.says_something
            if self._texts is not None:
                self._texts.append(choice.words)
            self._finish_reason = choice.finish_reason or self._finish_reason
        told = None
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self._usage = chunk.usage
            told = chunk.usage.completion_tokens
        if self._counting is None and (says_something or (chunk.choices and told)):
            self._counting = "chunks" if told is None else "usage"
        if self._counting == "usage":
            self._num_counted = max(self._num_counted, told or 0)
        else:
            self._num_counted += says_something
