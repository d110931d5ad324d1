from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_inference.tools.bench.sse import EventReader

STREAM = (
    b": a comment\n\n"
    b"data: one\n\n"
    b"event: message\ndata: two\nid: 7\n\n"
    b"data: three\r\ndata:  of two lines\r\n\r\n"
    b"data:four\r\r"
    b"\n\n"
    b'data: {"text": "\xf0\x9f\x98\x80"}\n\n'
    b"data:\n\n"
    b"data: unfinished"
)
EVENTS = [b"one", b"two", b"three\n of two lines", b"four", b'{"text": "\xf0\x9f\x98\x80"}', b""]


def test_every_kind_of_line() -> None:
    assert EventReader().feed(STREAM) == EVENTS


@settings(deadline=None)
@given(st.sets(st.integers(0, len(STREAM)), max_size=12))
def test_cuts_change_nothing(cuts: set[int]) -> None:
    reader = EventReader()
    edges = sorted({0, *cuts, len(STREAM)})
    events = [event for start, end in pairwise(edges) for event in reader.feed(STREAM[start:end])]
    assert events == EVENTS


def test_byte_by_byte() -> None:
    reader = EventReader()
    assert [event for place in range(len(STREAM)) for event in reader.feed(STREAM[place : place + 1])] == EVENTS


def test_the_end_of_a_half_event_comes_later() -> None:
    reader = EventReader()
    assert reader.feed(b"data: ab") == []
    assert reader.feed(b"c\n") == []
    assert reader.feed(b"\ndata: d\n\n") == [b"abc", b"d"]
