"""However the output is cut, what arrives is the same: the samples of every format, in every way to cut them."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_inference.text.parsers.registry import make_parser
from tests.text.parsers.reading import TOOLS, chunked, cut, read, read_whole
from tests.text.parsers.samples import SAMPLES

names = pytest.mark.parametrize("name", SAMPLES)


@names
def test_the_whole_output_at_once(name: str) -> None:
    sample = SAMPLES[name]
    reading = read_whole(sample.parser, sample.output)
    assert (reading.text, reading.calls) == (sample.text, sample.calls)


@names
def test_every_cut_in_two(name: str) -> None:
    sample = SAMPLES[name]
    for place in range(len(sample.output) + 1):
        reading = read(make_parser(sample.parser, tools=TOOLS), cut(sample.output, [place]))
        assert (reading.text, reading.calls) == (sample.text, sample.calls), cut(sample.output, [place])


@names
def test_pieces_of_equal_length(name: str) -> None:
    sample = SAMPLES[name]
    for size in (1, 2, 3, 5, 7):
        reading = read(make_parser(sample.parser, tools=TOOLS), chunked(sample.output, size))
        assert (reading.text, reading.calls) == (sample.text, sample.calls), size


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_random_cuts(data: st.DataObject) -> None:
    sample = SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))]
    places = data.draw(st.lists(st.integers(0, len(sample.output)), max_size=12))
    reading = read(make_parser(sample.parser, tools=TOOLS), cut(sample.output, places))
    assert (reading.text, reading.calls) == (sample.text, sample.calls)


@names
def test_arguments_are_json_objects_unless_the_model_broke_them(name: str) -> None:
    sample = SAMPLES[name]
    for _, arguments in sample.calls[: len(sample.calls) - sample.broken]:
        assert isinstance(json.loads(arguments), dict)
    if sample.broken:
        with pytest.raises(ValueError):
            json.loads(sample.calls[-1][1])
        assert sample.text, "what broke it is text"
    assert sample.calls or sample.text == sample.output


@names
def test_an_output_that_ends_early_keeps_what_has_come(name: str) -> None:
    """`max_tokens` anywhere: the same in one piece and in single characters, and arguments are only ever a prefix."""
    sample = SAMPLES[name]
    for end in range(len(sample.output)):
        output = sample.output[:end]
        whole = read_whole(sample.parser, output)
        assert read(make_parser(sample.parser, tools=TOOLS), output).same_as(whole), output
        for (_, arguments), (_, full) in zip(whole.calls, sample.calls, strict=False):
            assert full.startswith(arguments) or sample.broken
        if not whole.calls:
            assert whole.text == output


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<tool", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_start|>",
    "<|python_end|>", '{"name": "f", "arguments": ', '{"name": "g", "parameters": {"a": 1}}', "{}", "}", "{", "[", "]",
    ",", '"', "\\", "f", "g", "f(", "a=", "1", "'", ")", " ", "\n", ";", ":", "null", "é", "<think>", "</think>", "x",
]  # fmt: skip


@given(
    parser=st.sampled_from(["hermes", "llama3_json", "mistral", "pythonic", "json"]),
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=14),
    reasoning=st.sampled_from([None, "think"]),
    opened=st.booleans(),
    parallel=st.booleans(),
    data=st.data(),
)
@settings(max_examples=600, deadline=None)
def test_any_salad_of_syntax_is_read_the_same_in_pieces(
    parser: str, fragments: list[str], reasoning: str | None, opened: bool, parallel: bool, data: st.DataObject
) -> None:
    output = "".join(fragments)

    def fresh() -> object:
        return make_parser(parser, reasoning, tools=TOOLS, parallel=parallel, starts_in_reasoning=opened)

    whole = read(fresh(), [output])  # type: ignore[arg-type]
    assert read(fresh(), output).same_as(whole)  # type: ignore[arg-type]
    places = data.draw(st.lists(st.integers(0, len(output)), max_size=6))
    assert read(fresh(), cut(output, places)).same_as(whole)  # type: ignore[arg-type]
    if not whole.calls and reasoning is None:
        assert whole.text == output


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "json", "pythonic"])
def test_arguments_are_sent_while_they_come(parser: str) -> None:
    before, after = {
        "hermes": ('<tool_call>{"name": "f", "arguments": ', "}</tool_call>"),
        "llama3_json": ('{"name": "f", "parameters": ', "}"),
        "mistral": ("[TOOL_CALLS]f[ARGS]", ""),
        "json": ('[{"name": "f", "arguments": ', "}]"),
        "pythonic": ("[f(", ")]"),
    }[parser]
    if parser == "pythonic":
        arguments = ", ".join(f"key{i}='value'" for i in range(50))
    else:
        arguments = json.dumps({f"key{i}": "value" for i in range(50)})
    stream = make_parser(parser, tools=TOOLS)
    stream.add(before + arguments[: len(arguments) // 2])
    rest = chunked(arguments[len(arguments) // 2 :], 4)
    sent = [delta.arguments for piece in rest for delta in stream.add(piece).tool_calls]
    assert len([fragment for fragment in sent if fragment]) > 20
    stream.add(after)
    assert stream.saw_tool_call


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "json", "pythonic"])
def test_time_is_linear_in_the_arguments(parser: str) -> None:
    """100 KB by three characters. Quadratic work would take minutes; the bound is generous for a busy machine."""
    arguments = json.dumps({"text": "x\\n" * 20_000, "list": list(range(7_000))})
    output = {
        "hermes": f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>',
        "llama3_json": f'{{"name": "f", "parameters": {arguments}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{arguments}",
        "json": f'[{{"name": "f", "arguments": {arguments}}}]',
        "pythonic": f"[f(value={arguments})]",
    }[parser]
    assert len(output) > 100_000
    stream = make_parser(parser, tools=TOOLS)
    fragments: list[str] = []
    start = time.process_time()
    for piece in chunked(output, 3):
        fragments.extend(delta.arguments for delta in stream.add(piece).tool_calls)
    fragments.extend(delta.arguments for delta in stream.finish().tool_calls)
    assert time.process_time() - start < 5
    sent = json.loads("".join(fragments))
    assert (sent["value"] if parser == "pythonic" else sent) == json.loads(arguments)


@pytest.mark.parametrize("parser", ["hermes", "llama3_json", "mistral", "json", "pythonic"])
@pytest.mark.parametrize("filler", [" ", "\n", "<", "[", "{", "a "])
def test_time_is_linear_in_text_that_leads_nowhere(parser: str, filler: str) -> None:
    output = filler * 30_000
    start = time.process_time()
    reading = read(make_parser(parser, tools=TOOLS), chunked(output, 3))
    assert time.process_time() - start < 5
    assert reading.text == output
