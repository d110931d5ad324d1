from __future__ import annotations

import json
import math
from typing import Any, Literal

import pytest

from llm_inference.adapters.frames import MAX_LINE_BYTES, FrameReader, decode
from llm_inference.errors import EngineError
from tests.adapters.replay import many_cuts, one_cut

VALUES = [{"a": "é\n€"}, {"b": [1, None]}, {"c": "data: {}"}]


def read(chunks: list[bytes], framing: Literal["sse", "ndjson"] = "sse") -> list[Any]:
    reader = FrameReader(framing)
    return [value for chunk in chunks for value in reader.feed(chunk)] + list(reader.finish())


def dumped() -> list[bytes]:
    return [json.dumps(value, ensure_ascii=False).encode() for value in VALUES]


@pytest.mark.parametrize(
    ("start", "separator"),
    [(b"data: ", b"\n\n"), (b"data:", b"\n\n"), (b": ping\n\nevent: x\nid: 1\ndata: ", b"\r\n\r\n"), (b"", b"\n")],
)
@pytest.mark.parametrize("done", [b"", b"data: [DONE]\n\n", b"data:[DONE]"])
def test_events_cut_anywhere(start: bytes, separator: bytes, done: bytes) -> None:
    body = b"".join(start + line + separator for line in dumped()) + done
    for chunks in (*one_cut(body), *many_cuts(body)):
        assert read(chunks) == VALUES


def test_an_event_of_several_data_lines() -> None:
    assert read([b'data: {"a":\ndata: 1}\n\n']) == [{"a": 1}]


def test_nothing_comes_after_done() -> None:
    reader = FrameReader("sse")
    assert list(reader.feed(b'data: {"a": 1}\n\ndata: [DONE]\n\ndata: {"b": 2}\n\n')) == [{"a": 1}]
    assert reader.done
    assert list(reader.finish()) == []


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\n\n"])
def test_lines_cut_anywhere(separator: bytes) -> None:
    body = separator.join(dumped())  # the last line has no end
    for chunks in (*one_cut(body), *many_cuts(body)):
        assert read(chunks, "ndjson") == VALUES


@pytest.mark.parametrize("framing", ["sse", "ndjson"])
def test_what_is_no_json_is_shown(framing: Literal["sse", "ndjson"]) -> None:
    with pytest.raises(EngineError, match="oops"):
        read([b"data: {oops\n\n"], framing)


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    reader = FrameReader("ndjson")
    for _ in range(MAX_LINE_BYTES // 2**20):
        assert list(reader.feed(b"x" * 2**20)) == []
    with pytest.raises(EngineError, match="line of more than"):
        list(reader.feed(b"x"))


def test_numbers_that_json_has_not() -> None:
    assert math.isnan(decode(b'{"logprob": NaN}')["logprob"])


def test_half_a_character_is_a_replacement_character() -> None:
    assert decode(b'{"t": "\\ud83d", "u": "\\ude00x", "whole": "\\ud83d\\ude00"}') == {
        "t": "\ufffd",
        "u": "\ufffdx",
        "whole": "\U0001f600",
    }
