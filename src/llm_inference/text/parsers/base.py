"""What every parser of model output promises: text in, typed fragments out.

    engine text ──add()──► ParsedText(text, reasoning, tool_calls) ──► Delta fields
                 finish()

The promise that everything else leans on: the joined fragments do not depend on how the text was cut. Fragments are
sent as early as the format allows; what might still turn out to be syntax is held back.

What happens to text that is not what it seemed to be:

- a marker's beginning that does not become a marker is text, sent as soon as that is known;
- a call that breaks before it is announced (its name, and the beginning of its arguments) is text, marker included;
- a call that breaks later keeps the arguments sent so far, and everything from the offending character on is text;
- text that ends inside a call (`max_tokens`) leaves what has come: partial arguments, or text if not yet announced.

Knows nothing of tokens, tokenizers, HTTP or the engine. Pure Python, no regular expression over more than one chunk.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llm_inference.engine.types import ToolCallDelta

_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ParsedText:
    """What is new since the last call. Any field may be empty."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.tool_calls)

    def __add__(self, other: ParsedText) -> ParsedText:
        return ParsedText(
            self.text + other.text, self.reasoning + other.reasoning, (*self.tool_calls, *other.tool_calls)
        )


class OutputParser(Protocol):
    """One choice of one request. Not reusable, not thread-safe."""

    @property
    def saw_tool_call(self) -> bool:
        """A call was announced: `finish_reason` "stop" becomes "tool_calls"."""
        ...

    @property
    def is_complete(self) -> bool:
        """Nothing more can come (the one call allowed is there): generation may be aborted with "tool_calls"."""
        ...

    @property
    def in_reasoning(self) -> bool:
        """What comes next is reasoning, as far as is known: for `usage.reasoning_tokens`."""
        ...

    def add(self, text: str) -> ParsedText: ...

    def finish(self) -> ParsedText:
        """What was held back. Call once, after the last `add`."""
        ...


class PlainText:
    """No parser: everything is text."""

    saw_tool_call = False
    is_complete = False
    in_reasoning = False

    def add(self, text: str) -> ParsedText:
        return ParsedText(text)

    def finish(self) -> ParsedText:
        return ParsedText()


def new_call_id() -> str:
    """An id that does not repeat in practice (119 random bits)."""
    return "call_" + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(20))


def short_call_id() -> str:
    """Nine letters or digits: the only ids that Mistral's chat templates accept when they come back."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class Collector:
    """Gathers the fragments of one `add`, numbers the calls, and decides which whitespace is content.

    Whitespace between calls, before a first call and after a last one is layout, so that an answer of calls alone has
    no text. It is therefore held until the next visible character; a call drops it, text takes it along.
    """

    __slots__ = ("_arguments", "_calls", "_new_id", "_parallel", "_space", "_text", "is_complete", "num_calls")

    def __init__(self, *, parallel: bool = True, new_id: Callable[[], str] = new_call_id) -> None:
        self._parallel = parallel
        self._new_id = new_id
        self._text: list[str] = []
        #: Held whitespace; None once the current stretch of text has a visible character.
        self._space: list[str] | None = []
        self._calls: list[ToolCallDelta] = []
        self._arguments: list[str] = []
        self.num_calls = 0
        self.is_complete = False

    def content(self, text: str) -> None:
        if not text or self.is_complete:
            return
        if self._space is not None:
            if text.isspace():
                self._space.append(text)
                return
            self._text.extend(self._space)
            self._space = None
        self._text.append(text)

    def start_call(self, name: str) -> None:
        self._flush_arguments()
        self._space = []
        self._calls.append(ToolCallDelta(index=self.num_calls, id=self._new_id(), name=name))
        self.num_calls += 1

    def arguments(self, fragment: str) -> None:
        """A piece of the arguments of the last call started."""
        if fragment:
            self._arguments.append(fragment)

    def end_call(self) -> None:
        """The last call is whole. Without parallel calls this completes the output."""
        self.is_complete = not self._parallel

    def take(self) -> ParsedText:
        self._flush_arguments()
        parsed = ParsedText("".join(self._text), "", tuple(self._calls))
        self._text.clear()
        self._calls.clear()
        return parsed

    def finish(self) -> ParsedText:
        """`take`, with whitespace that no call followed or preceded."""
        if self._space is not None and self.num_calls == 0:
            self._text.extend(self._space)
        self._space = None
        return self.take()

    def _flush_arguments(self) -> None:
        """Join pieces into the call's last fragment of this round, or into a fragment of their own."""
        if not self._arguments:
            return
        joined = "".join(self._arguments)
        self._arguments.clear()
        last = self._calls[-1] if self._calls else None
        if last is not None:
            self._calls[-1] = ToolCallDelta(last.index, last.id, last.name, last.arguments + joined)
        else:
            self._calls.append(ToolCallDelta(index=self.num_calls - 1, arguments=joined))
