from __future__ import annotations

from typing import Any

import pytest

from llm_inference.tools.bench.reading import StreamReading, clipped, error_message
from llm_inference.tools.bench.timeline import Arrival, Failure, Timeline
from tests.tools.bench.scripted import frame, usage

DONE = b"data: [DONE]\n\n"


def text(content: str, finish: str | None = None, tokens: int | None = None) -> bytes:
    chunk: dict[str, Any] = {"id": "c", "choices": [{"index": 0, "text": content, "finish_reason": finish}]}
    if tokens is not None:
        chunk["usage"] = usage(9, tokens)
    return frame(chunk)


def chat(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None})


def final(prompt: int, completion: int) -> bytes:
    return frame({"choices": [], "usage": usage(prompt, completion)})


def read(*pieces: tuple[float, bytes]) -> Timeline:
    reading = StreamReading()
    for now, data in pieces:
        reading.feed(data, now)
    return reading.end(index=3, scheduled_s=0.0, sent_s=0.5, ended_s=9.0, planned_input_tokens=8, max_tokens=5)


def test_tokens_are_counted_by_the_usage_of_each_chunk() -> None:
    one = read((1.0, text("ab", tokens=2)), (2.0, text("c", tokens=3)), (3.0, text("", "stop", tokens=5)), (3.5, DONE))
    assert one.arrivals == (Arrival(1.0, 2), Arrival(2.0, 1), Arrival(3.0, 2))
    assert (one.counting, one.output_tokens, one.usage_told) == ("usage", 5, True)
    assert (one.input_tokens, one.cached_tokens, one.finish_reason) == (9, 2, "stop")
    assert (one.index, one.planned_input_tokens, one.max_tokens, one.ended_s) == (3, 8, 5, 9.0)
    assert one.failure is None


def test_without_it_a_chunk_that_says_something_is_a_token() -> None:
    one = read(
        (1.0, chat({"role": "assistant", "content": ""})),
        (2.0, chat({"content": "a"})),
        (3.0, chat({"reasoning_content": "hm"})),
        (4.0, chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]})),
        (5.0, chat({}, "stop")),
        (6.0, final(4, 7) + DONE),
    )
    assert one.arrivals == (Arrival(2.0, 1), Arrival(3.0, 1), Arrival(4.0, 1))
    # The totals are the server's all the same.
    assert (one.counting, one.output_tokens, one.input_tokens, one.usage_told) == ("chunks", 7, 4, True)
    assert one.ttft_s == 1.5


def test_without_any_usage_chunks_are_all_that_is_known() -> None:
    one = read((1.0, text("a")), (2.0, text("b", "length")), (2.0, DONE))
    assert (one.output_tokens, one.input_tokens, one.usage_told) == (2, None, False)


def test_usage_in_the_last_chunk_alone_is_not_usage_of_each() -> None:
    one = read((1.0, text("a")), (2.0, text("b")), (3.0, text("c", "stop", tokens=3)), (3.0, DONE))
    assert (one.counting, one.output_tokens) == ("chunks", 3)
    assert [arrival.time_s for arrival in one.arrivals] == [1.0, 2.0, 3.0]


def test_an_empty_role_chunk_with_usage_is_no_token() -> None:
    role = frame({"choices": [{"delta": {"role": "assistant", "content": ""}}], "usage": usage(9, 0)})
    one = read((1.0, role), (2.0, text("a", tokens=1)), (3.0, text("b", "stop", tokens=2)))
    assert one.arrivals == (Arrival(2.0, 1), Arrival(3.0, 1))
    assert one.counting == "usage"


def test_what_one_read_brings_arrived_together() -> None:
    one = read((1.0, text("a")), (2.0, text("b") + text("c") + text("d", "stop") + DONE))
    assert one.arrivals == (Arrival(1.0, 1), Arrival(2.0, 3))


def test_a_chunk_counts_when_its_last_byte_is_there() -> None:
    data = text("a", "stop")
    one = read((1.0, data[:10]), (2.0, data[10:]))
    assert one.arrivals == (Arrival(2.0, 1),)


@pytest.mark.parametrize(
    ("pieces", "kind", "detail"),
    [
        ((text("a"),), "truncated", "finish_reason"),
        ((), "truncated", "finish_reason"),
        ((text("", "stop"), DONE), "empty_answer", "(stop)"),
        ((text("a"), frame({"error": {"message": "it died", "code": 500}})), "error_event", "it died"),
        ((text("a"), frame({"object": "error", "message": "flat"})), "error_event", "flat"),
        ((text("a"), b"data: {broken\n\n", text("b", "stop")), "malformed", "broken"),
        ((frame({"choices": [{"text": 5}]}),), "malformed", "text"),
    ],
)
def test_what_is_no_answer_is_a_failure(pieces: tuple[bytes, ...], kind: str, detail: str) -> None:
    one = read(*((float(place), piece) for place, piece in enumerate(pieces)))
    assert one.failure is not None
    assert one.failure.kind == kind
    assert detail in one.failure.detail


def test_after_done_nothing_counts() -> None:
    one = read((1.0, text("a", "stop") + DONE + text("b")), (2.0, text("c")))
    assert one.arrivals == (Arrival(1.0, 1),)


def test_the_first_failure_is_kept() -> None:
    reading = StreamReading()
    reading.fail("timeout", "too late")
    reading.fail("disconnected", "and gone")
    assert reading.end(index=0, scheduled_s=0, sent_s=0, ended_s=1).failure == Failure("timeout", "too late")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "m", "code": None}}, "m"),
        ({"error": "plain", "error_type": "validation"}, "plain"),
        ({"object": "error", "message": "m"}, "m"),
        ({"detail": [1]}, '{"detail":[1]}'),
        ("text", "text"),
    ],
)
def test_errors_in_every_usual_shape(body: Any, message: str) -> None:
    assert error_message(body) == message


def test_a_long_message_is_one_short_line() -> None:
    assert clipped("a\n  b") == "a b"
    assert len(clipped("x" * 1000)) == 300
