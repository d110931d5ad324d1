"""Every quirk of a chunk, and the replies of real servers, by the state machine alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.events import EventReader
from llm_inference.adapters.frames import decode
from llm_inference.adapters.openai_stream import StreamReading, finish_reason
from llm_inference.engine.types import Delta, Usage
from llm_inference.errors import EngineError
from tests.adapters.upstream_server import ends, said, texts, usage


def read(chunks: Sequence[Any], n: int = 1, **more: Any) -> list[Delta]:
    reading = StreamReading(n, where="the server", **more)
    deltas = [delta for chunk in chunks for delta in reading.take(chunk)]
    return deltas + reading.end()


def calls(deltas: Sequence[Delta]) -> dict[int, tuple[str, str, str]]:
    """Index → (id, name, joined arguments); fails where id or name come twice."""
    found: dict[int, tuple[str, str, str]] = {}
    for delta in deltas:
        for call in delta.tool_calls:
            if call.index not in found:
                assert call.id is not None
                assert call.name is not None
                found[call.index] = (call.id, call.name, "")
            else:
                assert (call.id, call.name) == (None, None)
            known = found[call.index]
            found[call.index] = (known[0], known[1], known[2] + call.arguments)
    return found


@pytest.mark.parametrize(
    ("said_as", "means"),
    [
        (None, None), ("", None), ("stop", "stop"), ("eos_token", "stop"), ("stop_sequence", "stop"),
        ("max_tokens", "length"), ("length", "length"), ({"type": "length", "length": 3}, "length"),
        ({"type": "stop", "matched": 2}, "stop"), ("function_call", "tool_calls"), ("content_filter", "content_filter"),
        ("abort", "abort"), ("something new", "stop"),
    ],
)  # fmt: skip
def test_finish_reasons(said_as: Any, means: Any) -> None:
    assert finish_reason(said_as) == means


def test_the_last_end_waits_for_the_usage_and_text_does_not() -> None:
    reading = StreamReading(1, where="the server")
    [first] = reading.take(said("all", "stop"))
    assert (first.text, first.finish_reason) == ("all", None)
    assert reading.take(usage(3, 1)) == []
    [last] = reading.end()
    assert (last.finish_reason, last.usage) == ("stop", Usage(3, 1))


def test_choices_out_of_order_each_end_once() -> None:
    deltas = read([said("b", index=1), said("a"), said(finish="stop", index=1), said("c"), said("x", "length")], n=2)
    assert (texts(deltas, 0), texts(deltas, 1)) == ("acx", "b")
    assert ends(deltas) == {0: "length", 1: "stop"}


def test_what_comes_after_a_choices_end_is_not_its() -> None:
    assert ends(read([said("a", "stop"), said("", "stop"), said("more")])) == {0: "stop"}


def test_a_choice_that_was_not_asked_for() -> None:
    with pytest.raises(EngineError, match="choice 5"):
        read([said("a", index=5)], n=2)


def test_an_end_that_never_comes() -> None:
    with pytest.raises(EngineError, match="before the answer was finished"):
        read([said("a"), said("b", "stop", index=1)], n=2)


def test_cumulative_text() -> None:
    deltas = read([said("one"), said("one two"), said("one two", "stop")], cumulative_text=True)
    assert texts(deltas) == "one two"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_under_both_names(name: str) -> None:
    deltas = read([said(**{name: "think"}), said("say"), said(finish="stop")])
    assert "".join(delta.reasoning for delta in deltas) == "think"
    assert texts(deltas) == "say"


def test_tool_calls_without_index_with_whole_arguments_and_one_id_for_all() -> None:
    whole = [{"id": 0, "function": {"name": "f", "arguments": {"a": 1}}}, {"id": 0, "function": {"name": "g"}}]
    deltas = read([said(tool_calls=whole), said(finish="eos_token")])
    found = calls(deltas)
    assert {index: call[1:] for index, call in found.items()} == {0: ("f", '{"a":1}'), 1: ("g", "")}
    assert found[0][0] != found[1][0]
    assert ends(deltas) == {0: "tool_calls"}


def test_tool_call_fragments_with_a_repeated_id_and_an_index_from_one() -> None:
    chunks = [
        said(tool_calls=[{"index": 1, "id": "x", "function": {"name": "f", "arguments": "{"}}]),
        said(tool_calls=[{"index": 1, "id": "x", "function": {"name": None, "arguments": "}"}}]),
        said(tool_calls=[{"index": 2, "id": "x", "function": {"name": "g", "arguments": "{}"}}], finish="stop"),
    ]
    assert calls(read(chunks)) == {0: ("x", "f", "{}"), 1: ("call_1", "g", "{}")}


def test_fragments_without_index_go_on_with_the_last_call() -> None:
    chunks = [
        said(tool_calls=[{"id": "x", "function": {"name": "f", "arguments": "{"}}]),
        said(tool_calls=[{"function": {"arguments": "}"}}]),
        said(finish="tool_calls"),
    ]
    assert calls(read(chunks)) == {0: ("x", "f", "{}")}


def test_logprobs_of_chats() -> None:
    entry = {"token": "é", "logprob": -0.1, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -3.0}]}
    chunk = {"choices": [{"delta": {"content": "é"}, "logprobs": {"content": [entry]}}]}
    [first, second] = [delta.logprobs for delta in read([chunk, chunk, said(finish="stop")]) if delta.logprobs]
    assert (first[0].token_bytes, first[0].top[0][1:3], first[0].text_offset) == ("é".encode(), ("e", -3.0), 0)
    assert second[0].text_offset == 1


def test_logprobs_of_completions_with_an_echo() -> None:
    logprobs = {"tokens": ["A", " b"], "token_logprobs": [None, -1.5], "top_logprobs": [None, {" b": -1.5, "c": -0.5}]}
    [delta] = [
        d for d in read([{"choices": [{"text": "A b", "logprobs": logprobs, "finish_reason": "stop"}]}]) if d.logprobs
    ]
    assert delta.logprobs is not None
    assert [entry.logprob for entry in delta.logprobs] == [None, -1.5]
    assert [top[1] for top in delta.logprobs[1].top] == ["c", " b"], "best first"
    assert [entry.text_offset for entry in delta.logprobs] == [0, 1]


def test_token_ids_and_stop_reasons_are_kept() -> None:
    chunk = {"choices": [{"text": "a", "token_ids": [5], "finish_reason": "stop", "stop_reason": "X"}]}
    deltas = read([{"choices": [], "prompt_token_ids": [1, 2]}, chunk])
    assert deltas[0].prompt_token_ids == (1, 2)
    assert deltas[1].token_ids == (5,)
    assert deltas[-1].stop_reason == "X"


def test_usage_details() -> None:
    counts = {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    deltas = read([said("a", "stop"), {"choices": None, "usage": counts | {"completion_tokens_details": None}}])
    assert deltas[-1].usage == Usage(4, 2, 3)


def recorded_chats(shared_dir: Path) -> list[tuple[str, bytes, Any]]:
    """(name, raw body, usage or None) of every chat that a real TGI answered."""
    found = []
    for path in sorted((shared_dir / "fixtures" / "tgi_recorded").glob("*.json")):
        for exchange in json.loads(path.read_text())["interactions"]:
            if exchange["uri"].endswith("/chat/completions") and exchange["status"] == 200:
                found.append((path.name, exchange["response_body"].encode(), None))
    return found


def test_recorded_replies_cut_everywhere(shared_dir: Path) -> None:
    """One-cut at many places gives what the uncut bytes give; the text is that of the raw JSON."""
    recorded = recorded_chats(shared_dir)
    assert len(recorded) >= 9
    for name, raw, _ in recorded:
        whole = _replay(raw, [len(raw)])
        assert set(ends(whole).values()) <= {"stop", "length", "tool_calls"}, name
        assert texts(whole) == _plain_text(raw), name
        for place in range(1, len(raw), max(len(raw) // 60, 1)):
            assert _replay(raw, [place, len(raw)]) == whole, (name, place)


def test_recorded_tool_calls(shared_dir: Path) -> None:
    file = shared_dir / "fixtures" / "tgi" / "test_tools_llama" / "test_flash_llama_grammar_tools_choice_stream.json"
    chunks = json.loads(file.read_text())  # the recording ends before the finish reason
    deltas = read([*chunks, said(finish="eos_token")])
    [(_, name, arguments)] = calls(deltas).values()
    assert name == "get_current_weather"
    assert set(json.loads(arguments)) == {"location", "format"}
    assert ends(deltas) == {0: "tool_calls"}


def test_recorded_list_of_prompts_out_of_order(shared_dir: Path) -> None:
    folder = shared_dir / "fixtures" / "tgi" / "test_completion_prompts"
    chunks = json.loads((folder / "test_flash_llama_completion_many_prompts_stream.json").read_text())
    indices = {choice["index"] for chunk in chunks for choice in chunk["choices"]}
    deltas = read(chunks, n=len(indices))
    assert set(ends(deltas)) == indices
    assert {delta.finish_reason for delta in deltas} <= {None, "stop", "length"}
    for index in indices:
        raw = [c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert texts(deltas, index) == "".join(raw)


def test_recorded_usage(shared_dir: Path) -> None:
    folder = shared_dir / "fixtures" / "tgi" / "test_completion_prompts"
    deltas = read(json.loads((folder / "test_chat_openai_usage.json").read_text()))
    assert deltas[-1].usage == Usage(39, 3)
    assert texts(deltas) == "OK!"


def _chunk(choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "chunk",
    [
        _chunk({"index": 0, "delta": {"content": "a"}, "finish_reason": None, "logprobs": None}),
        _chunk({"index": 1, "delta": {"role": "assistant", "content": ""}}),
        _chunk({"index": 2, "delta": {"content": "a"}}),
        _chunk({"index": None, "delta": {"content": "a"}}),
        _chunk({"delta": {"content": "a"}}),
        _chunk({"index": "0", "delta": {"content": "a"}}),
        _chunk({"index": 0, "delta": {"content": "a", "unheard_of": None}, "unheard_of": []}),
        _chunk({"index": 0, "delta": {"content": "a", "reasoning": "b"}}),
        _chunk({"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}),
        _chunk({"index": 0, "delta": {"content": "a"}, "stop_reason": 3, "finish_reason": ""}),
        _chunk({"index": 0, "delta": {"content": "a"}, "token_ids": [7]}),
        _chunk({"index": 0, "delta": {"content": None}}),
        _chunk({"index": 0, "delta": {"content": [{"type": "text", "text": "a"}]}}),
        _chunk({"index": 0, "delta": {"content": "a"}}, usage={"prompt_tokens": 3, "completion_tokens": 1}),
        _chunk({"index": 0, "delta": {"content": "a"}}, error={"message": "no"}),
        _chunk({"index": 0, "delta": {"content": "a"}}, object="error", message="no"),
        _chunk({"index": 0, "delta": {"content": "\ud83d"}}),
        _chunk({"index": 0, "delta": {"content": "a"}}, timing=math.nan),
        {"choices": [], "id": "c"},
    ],
)
def test_the_short_way_of_a_chunk_says_what_the_long_one_says(chunk: dict[str, Any], n: int) -> None:
    """Of JSON a chunk with nothing but text is read by a way of its own, everything else as any decoded object."""
    data = json.dumps(chunk).encode()
    short, long = (StreamReading(n, where="the server") for _ in range(2))
    try:
        expected: Any = [(d.index, d.text, d.reasoning, d.token_ids, d.finish_reason) for d in long.take(decode(data))]
    except EngineError as error:
        with pytest.raises(EngineError, match=re.escape(error.message)):
            short.take_event(data)
        return
    got = short.take_event(data)
    assert [(d.index, d.text, d.reasoning, d.token_ids, d.finish_reason) for d in got] == expected
    assert short.usage == long.usage


def test_nothing_is_said_behind_the_end() -> None:
    reading = StreamReading(2, where="the server")
    reading.take(_chunk({"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}))
    assert reading.take_event(json.dumps(_chunk({"index": 0, "delta": {"content": "b"}})).encode()) == []


def _replay(raw: bytes, cuts: list[int]) -> list[Delta]:
    reader, reading = EventReader(), StreamReading(1, where="the server")
    deltas: list[Delta] = []
    begin = 0
    events: list[bytes] = []
    for cut in cuts:
        events += reader.feed(raw[begin:cut])
        begin = cut
    for event in events + reader.end():
        if event.strip() != b"[DONE]":
            deltas += reading.take_event(event)
    return deltas + reading.end()


def _plain_text(raw: bytes) -> str:
    out = ""
    for line in raw.decode().splitlines():
        data = line.removeprefix("data:").strip()
        if data.startswith("{"):
            for choice in json.loads(data)["choices"]:
                out += (choice.get("delta") or choice.get("message") or {}).get("content") or ""
    return out


@pytest.mark.parametrize(
    "choice",
    [
        None, 5, "text", ["text"],
        {"delta": "text"}, {"delta": {"content": 5}}, {"delta": {"content": {"a": 1}}},
        {"delta": {"content": [{"text": 5}]}}, {"delta": {"reasoning": ["x"]}}, {"text": 5}, {"text": ["a"]},
        {"delta": {"tool_calls": ["x"]}}, {"delta": {"tool_calls": [{"function": "x"}]}},
        {"delta": {"tool_calls": [{"function": {"name": 5}}]}},
        {"delta": {"content": "a"}, "token_ids": [None]}, {"delta": {"content": "a"}, "token_ids": "ab"},
        {"delta": {"content": "a"}, "prompt_token_ids": {"a": 1}},
        {"delta": {"content": "a"}, "logprobs": {"content": [{}]}},
        {"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": "x"}]}},
        {"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -1, "bytes": [999]}]}},
        {"text": "a", "logprobs": {"tokens": 5, "token_logprobs": [-1]}},
        {"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": ["x"]}},
    ],
)  # fmt: skip
def test_a_chunk_of_no_known_form_is_the_engines_error(choice: Any) -> None:
    reading = StreamReading(1, where="the server")
    with pytest.raises(EngineError, match="the server sent"):
        reading.take({"choices": [choice]})
    with pytest.raises(EngineError, match="the server sent"):
        reading.take({"choices": choice or 5})


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b'"\xff"', b"1" * 5000, b"{} {}"], ids=repr)
def test_what_is_no_json_is_the_engines_error(data: bytes) -> None:
    with pytest.raises(EngineError, match="the server sent"):
        StreamReading(1, where="the server").take_event(data)


def test_numbers_and_characters_that_json_has_not() -> None:
    """Python's servers write NaN and Infinity, those that count in UTF-16 half an emoji: neither ends an answer."""
    reading = StreamReading(1, where="the server")
    data = (
        b'{"choices": [{"index": 0, "delta": {"content": "a\\ud83d"}, "logprobs": {"content": ['
        b'{"token": "a", "logprob": -Infinity, "top_logprobs": [{"token": "b", "logprob": null}]}]}}]}'
    )
    [delta] = reading.take_event(data)
    assert delta.text == "a\ufffd"
    assert delta.logprobs is not None
    assert delta.logprobs[0].logprob == -math.inf
    assert delta.logprobs[0].top[0][2] == -math.inf


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": -5, "completion_tokens": 1}, {"prompt_tokens": 5, "completion_tokens": -1},
        {"prompt_tokens": 5, "completion_tokens": "7"}, {"prompt_tokens": 10**30}, {"prompt_tokens": True},
        {"prompt_tokens": 5, "completion_tokens": 1.5}, {"prompt_tokens": "5"},
        {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -5}},
        {"prompt_tokens": 5, "completion_tokens_details": {"reasoning_tokens": [1]}},
    ],
)  # fmt: skip
def test_a_usage_with_wrong_counts_is_none(counts: dict[str, Any]) -> None:
    [last] = read([{**said(finish="stop"), "usage": counts}])
    assert last.usage is None


def test_details_of_a_usage_that_are_no_objects_say_nothing() -> None:
    counts = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": 5, "completion_tokens_details": "x"}
    [last] = read([{**said(finish="stop"), "usage": counts}])
    assert last.usage == Usage(5, 2)


def test_an_empty_id_of_a_call_is_none() -> None:
    call = {"index": 0, "id": "", "function": {"name": "f", "arguments": "{}"}}
    assert calls(read([said(None, tool_calls=[call]), said(finish="stop")])) == {0: ("call_0", "f", "{}")}
