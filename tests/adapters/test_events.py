from __future__ import annotations

import pytest

from llm_inference.adapters.events import EventReader

STREAM = b': hi\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:{"b":\ndata: 2}\n\n{"error": "bare"}\ndata: last'
EVENTS = [b'{"a": 1}', b'{"b":\n2}', b'{"error": "bare"}', b"last"]


@pytest.mark.parametrize("place", range(len(STREAM) + 1))
def test_cut_anywhere(place: int) -> None:
    reader = EventReader()
    assert reader.feed(STREAM[:place]) + reader.feed(STREAM[place:]) + reader.end() == EVENTS


def test_byte_by_byte() -> None:
    reader = EventReader()
    assert [event for byte in STREAM for event in reader.feed(bytes([byte]))] + reader.end() == EVENTS


def test_nothing_is_no_event() -> None:
    reader = EventReader()
    assert reader.feed(b"\n\n: comment\n\n") + reader.end() == []
