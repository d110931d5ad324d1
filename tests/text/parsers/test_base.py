"""Ids, the whitespace rule and the single call."""

from __future__ import annotations

import re

import pytest

from llm_inference.engine.types import ToolCallDelta
from llm_inference.text.parsers.base import Collector, ParsedText, PlainText, new_call_id, short_call_id
from llm_inference.text.parsers.registry import make_parser
from tests.text.parsers.reading import TOOLS, chunked, read, read_whole
from tests.text.parsers.samples import SAMPLES


def test_ids_do_not_repeat_and_have_their_forms() -> None:
    long, short = [new_call_id() for _ in range(500)], [short_call_id() for _ in range(500)]
    assert len({*long}) == len({*short}) == 500
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{20}", call_id) for call_id in long)
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", call_id) for call_id in short)


def test_mistral_ids_are_what_its_templates_accept() -> None:
    two = read_whole("mistral", SAMPLES["mistral, array"].output)
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", call_id) for call_id in two.ids)
    other = read_whole("hermes", SAMPLES["hermes, two with text around"].output)
    assert all(call_id.startswith("call_") for call_id in other.ids)


def test_parsed_texts_join() -> None:
    call = ToolCallDelta(0, "id", "f")
    joined = ParsedText("a", "r", (call,)) + ParsedText("b", "s")
    assert joined == ParsedText("ab", "rs", (call,))
    assert joined
    assert not ParsedText()


def test_plain_text_passes_everything() -> None:
    reading = read(PlainText(), ["<tool_call>", "</think> ", "\n"])
    assert reading.text == "<tool_call></think> \n"
    assert reading.calls == []


def test_pieces_of_one_round_make_one_fragment_each_call() -> None:
    out = Collector()
    out.content(" ")
    out.start_call("f")
    out.arguments("{")
    out.arguments("}")
    out.end_call()
    out.content("\n")
    out.start_call("g")
    out.arguments("{")
    first = out.take()
    assert [(call.index, call.name, call.arguments) for call in first.tool_calls] == [(0, "f", "{}"), (1, "g", "{")]
    assert first.text == ""
    out.arguments("}")
    out.end_call()
    out.content("\n")
    assert out.take().tool_calls == (ToolCallDelta(1, arguments="}"),)
    assert out.finish() == ParsedText()
    assert not out.is_complete


def test_whitespace_alone_is_an_answer() -> None:
    for parser in ("hermes", "llama3_json", "mistral", "pythonic", "json"):
        assert read_whole(parser, " \n ").text == " \n "


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if len(sample.calls) > 1])
def test_without_parallel_calls_the_first_one_completes_the_output(name: str) -> None:
    sample = SAMPLES[name]
    for size in (1, 4, len(sample.output)):
        parser = make_parser(sample.parser, tools=TOOLS, parallel=False)
        reading = read(parser, chunked(sample.output, size))
        assert reading.calls == sample.calls[:1]
        assert parser.is_complete
        assert not reading.text.strip() or sample.text.startswith(reading.text)


def test_a_parser_is_not_complete_before_its_call_is() -> None:
    parser = make_parser("hermes", tools=TOOLS, parallel=False)
    parser.add('<tool_call>{"name": "f", "arguments": {}')
    assert parser.saw_tool_call
    assert not parser.is_complete
    parser.add("}")
    assert parser.is_complete
