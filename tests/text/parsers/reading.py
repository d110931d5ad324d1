"""Feeds a parser in pieces and puts the fragments together again, checking the rules of the stream on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from llm_inference.engine.types import ToolCallDelta
from llm_inference.text.parsers.base import OutputParser, ParsedText
from llm_inference.text.parsers.registry import make_parser

NAMES = ("get_weather", "get_time", "f", "g")


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name, **more}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


TOOLS = [tool(name) for name in NAMES]


@dataclass
class Reading:
    """What a client has after the last fragment."""

    text: str = ""
    reasoning: str = ""
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    fragments: list[str] = field(default_factory=list)

    def take(self, parsed: ParsedText) -> None:
        self.text += parsed.text
        self.reasoning += parsed.reasoning
        for delta in parsed.tool_calls:
            self._take_call(delta)

    def _take_call(self, delta: ToolCallDelta) -> None:
        if delta.index == len(self.names):  # a new call: id and name, once
            assert delta.id
            assert delta.name
            assert delta.id not in self.ids
            self.ids.append(delta.id)
            self.names.append(delta.name)
            self.arguments.append(delta.arguments)
        else:
            assert delta.index == len(self.names) - 1
            assert delta.id is None
            assert delta.name is None
            assert delta.arguments, "a fragment that says nothing"
            self.arguments[-1] += delta.arguments
        self.fragments.append(delta.arguments)

    @property
    def calls(self) -> list[tuple[str, str]]:
        return list(zip(self.names, self.arguments, strict=True))

    def same_as(self, other: Reading) -> bool:
        return (self.text, self.reasoning, self.calls) == (other.text, other.reasoning, other.calls)


def read(parser: OutputParser, pieces: Iterable[str]) -> Reading:
    reading = Reading()
    for piece in pieces:
        reading.take(parser.add(piece))
    reading.take(parser.finish())
    assert parser.saw_tool_call == bool(reading.names)
    return reading


def read_whole(name: str | None, text: str, **options: Any) -> Reading:
    return read(make_parser(name, tools=TOOLS, **options), [text])


def chunked(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def cut(text: str, places: Iterable[int]) -> list[str]:
    """`text` cut at `places` (any order, duplicates make empty pieces)."""
    bounds = [0, *sorted(places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]
