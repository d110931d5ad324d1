"""Reasoning between `<think>` and `</think>`, at the beginning of the output: Qwen3, DeepSeek-R1 and their kin.

Where the chat template has already opened it (`starts_in_reasoning`), the output begins inside, and a repeated
`<think>` is swallowed. Line breaks around the markers are layout: they belong to neither side. A `<think>` later in the
output is text. Knows nothing of tool calls; `ReasoningThenTools` joins the two.
"""

from __future__ import annotations

from enum import Enum

from llm_inference.text.parsers.base import OutputParser, ParsedText
from llm_inference.text.parsers.tool_parser import possible_marker_start

START, END = "<think>", "</think>"
_BREAKS = "\r\n"


class _Part(Enum):
    BEFORE = 0  # maybe a marker comes
    OPENED = 1  # line breaks behind the marker
    REASONING = 2
    CLOSED = 3  # line breaks behind the end marker
    TEXT = 4


class ThinkParser:
    """An `OutputParser` that separates reasoning from text."""

    saw_tool_call = False
    is_complete = False

    def __init__(self, *, starts_in_reasoning: bool = False) -> None:
        self._starts_open = starts_in_reasoning
        self._part = _Part.BEFORE
        self._held = ""
        self._breaks: list[str] = []  # white space before it all, line breaks inside that may turn out to be its last

    @property
    def in_reasoning(self) -> bool:
        if self._part is _Part.BEFORE:
            return self._starts_open
        return self._part in (_Part.OPENED, _Part.REASONING)

    def add(self, text: str) -> ParsedText:
        reasoning: list[str] = []
        if self._part is _Part.BEFORE:
            text = self._before(text)
        if self._part is _Part.OPENED:
            text = text.lstrip(_BREAKS)
            if text:
                self._part = _Part.REASONING
        if self._part is _Part.REASONING:
            text = self._inside(text, reasoning)
        if self._part is _Part.CLOSED:
            text = text.lstrip(_BREAKS)
            if text:
                self._part = _Part.TEXT
        return ParsedText(text if self._part is _Part.TEXT else "", "".join(reasoning))

    def finish(self) -> ParsedText:
        rest = "".join(self._breaks) + self._held
        self._held = ""
        self._breaks.clear()
        return ParsedText(reasoning=rest) if self.in_reasoning else ParsedText(rest)

    def _before(self, text: str) -> str:
        """Decide where the output begins. Returns what is left of `text`, with what was held."""
        if not self._held and (not text or text.isspace()):
            self._breaks.append(text)  # a model may go on like this for long: looked at once
            return ""
        buffer = self._held + text
        stripped = buffer.lstrip()
        if START.startswith(stripped) and stripped != START:
            self._held = buffer
            return ""
        buffer = "".join((*self._breaks, buffer))
        self._held = ""
        self._breaks.clear()
        if stripped.startswith(START):
            self._part = _Part.OPENED
            return stripped[len(START) :]
        self._part = _Part.OPENED if self._starts_open else _Part.TEXT
        return buffer

    def _inside(self, text: str, reasoning: list[str]) -> str:
        """Move reasoning out of `text`; returns what stands behind the end marker."""
        buffer = self._held + text
        at = buffer.find(END)
        if at >= 0:
            body, rest = buffer[:at], buffer[at + len(END) :]
            self._held = ""
            self._give(body.rstrip(_BREAKS), reasoning)
            self._breaks.clear()
            self._part = _Part.CLOSED
            return rest
        keep = len(buffer) - possible_marker_start(buffer, (END,))
        body, self._held = buffer[:keep], buffer[keep:]
        inner = body.rstrip(_BREAKS)
        self._give(inner, reasoning)
        self._breaks.append(body[len(inner) :])
        return ""

    def _give(self, body: str, reasoning: list[str]) -> None:
        if body:
            reasoning.extend(self._breaks)
            self._breaks.clear()
            reasoning.append(body)


class ReasoningThenTools:
    """First the reasoning is taken out, then calls are looked for in what is left."""

    def __init__(self, reasoning: OutputParser, tools: OutputParser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def saw_tool_call(self) -> bool:
        return self._tools.saw_tool_call

    @property
    def is_complete(self) -> bool:
        return self._tools.is_complete

    @property
    def in_reasoning(self) -> bool:
        return self._reasoning.in_reasoning

    def add(self, text: str) -> ParsedText:
        return self._then(self._reasoning.add(text))

    def finish(self) -> ParsedText:
        return self._then(self._reasoning.finish()) + self._tools.finish()

    def _then(self, parsed: ParsedText) -> ParsedText:
        return ParsedText(reasoning=parsed.reasoning) + (self._tools.add(parsed.text) if parsed.text else ParsedText())


def opens_reasoning(prompt: str) -> bool:
    """Whether a rendered prompt ends inside an opened `<think>`."""
    return prompt.rstrip().endswith(START)
