"""Reasoning apart from text, then calls."""

from __future__ import annotations

import pytest

from llm_inference.text.parsers.registry import make_parser
from llm_inference.text.parsers.think import ThinkParser, opens_reasoning
from tests.text.parsers.reading import TOOLS, chunked, cut, read

#: output, opened by the template, reasoning, text
CASES = {
    "usual": ("<think>\nHm, a < b?\n</think>\n\nParis.\n", False, "Hm, a < b?", "Paris.\n"),
    "opened by the template": ("\nHm.\n\nSo.\n</think>\n\n  Paris", True, "Hm.\n\nSo.", "  Paris"),
    "opened twice": ("<think>\nHm</think>Paris", True, "Hm", "Paris"),
    "empty": ("<think>\n\n</think>\n\nParis", False, "", "Paris"),
    "empty, opened": ("</think>Paris", True, "", "Paris"),
    "none": ("Paris <think> is </think> a", False, "", "Paris <think> is </think> a"),
    "a beginning that is none": ("<thin air", False, "", "<thin air"),
    "unfinished": ("<think>Hm </thi", False, "Hm </thi", ""),
    "unfinished, line breaks": ("Hm\n\n", True, "Hm\n\n", ""),
    "unfinished marker": ("  <thi", False, "", "  <thi"),
    "almost an end": ("<think>a </thin </think>b", False, "a </thin ", "b"),
    "a second block": ("<think>a</think><think>b</think>", False, "a", "<think>b</think>"),
    "nothing": ("", False, "", ""),
    "white space before": (" \n\t <think>a</think>b", False, "a", "b"),
    "white space before text": (" \n\t b", False, "", " \n\t b"),
    "white space alone": (" \n ", False, "", " \n "),
}

cases = pytest.mark.parametrize("name", CASES)


@cases
def test_every_chunking(name: str) -> None:
    output, opened, reasoning, text = CASES[name]
    ways = [[output], list(output), *(cut(output, [place]) for place in range(len(output))), list(chunked(output, 3))]
    for pieces in ways:
        reading = read(ThinkParser(starts_in_reasoning=opened), pieces)
        assert (reading.reasoning, reading.text) == (reasoning, text), pieces


def test_reasoning_is_sent_while_it_comes() -> None:
    parser = ThinkParser()
    assert parser.add("<think>\n").reasoning == ""
    assert parser.add("first").reasoning == "first"
    assert parser.add("\n").reasoning == ""
    assert parser.add("second").reasoning == "\nsecond"


def test_where_it_stands_is_known() -> None:
    parser = ThinkParser()
    assert not parser.in_reasoning
    parser.add("<think>")
    assert parser.in_reasoning
    parser.add("a</think>")
    assert not parser.in_reasoning
    assert ThinkParser(starts_in_reasoning=True).in_reasoning


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_calls_come_after_the_reasoning(size: int) -> None:
    output = (
        'I could <tool_call>{"name": "f"}</tool_call>\n</think>\n\n'
        'Now:\n<tool_call>{"name": "g", "arguments": {"a": "</think>"}}</tool_call>'
    )
    parser = make_parser("hermes", "think", tools=TOOLS, starts_in_reasoning=True)
    assert parser.in_reasoning
    reading = read(parser, chunked(output, size))
    assert reading.reasoning == 'I could <tool_call>{"name": "f"}</tool_call>'
    assert reading.text == "Now:\n"
    assert reading.calls == [("g", '{"a": "</think>"}')]
    assert not parser.in_reasoning
    assert not parser.is_complete


def test_one_call_after_the_reasoning_completes_it() -> None:
    parser = make_parser("hermes", "think", tools=TOOLS, parallel=False)
    reading = read(parser, ['<think>x</think><tool_call>{"name": "f"}', "</tool_call> more"])
    assert parser.is_complete
    assert reading.calls == [("f", "{}")]


def test_an_unfinished_start_goes_through_the_tool_parser() -> None:
    reading = read(make_parser("hermes", "think", tools=TOOLS), ["<thi"])
    assert reading.text == "<thi"


def test_prompts_that_open_the_reasoning() -> None:
    assert opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not opens_reasoning("<think>\n\n</think>\n\n")
    assert not opens_reasoning("")
