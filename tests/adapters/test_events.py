from __future__ import annotations

import pytest

from llm_inference.adapters import events
from llm_inference.adapters.events import EventReader
from llm_inference.errors import EngineError

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


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 999, b"data: x\n" * 200, b": " + b"x" * 999])
def test_an_event_without_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 50_000)
    reader = EventReader()

    def feed() -> None:
        for _ in range(60):
            reader.feed(piece)

    with pytest.raises(EngineError, match="50000"):
        feed()


def test_many_events_and_comments_are_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 5_000)
    reader = EventReader()
    for _ in range(60):
        assert reader.feed(b": " + b"x" * 998 + b"\n") == []
        assert reader.feed(b"data: 1\n\n") == [b"1"]


def test_a_line_in_many_pieces_is_looked_at_once() -> None:
    reader = EventReader()
    pieces = [b"data: ", *[b"x"] * 200_000, b"\r", b"\n\r", b"data: 2\n\n"]
    assert [event for piece in pieces for event in reader.feed(piece)] == [b"x" * 200_000, b"2"]
