from __future__ import annotations

import msgspec

from llm_inference.native.encoder_queue import EncoderQueue
from llm_inference.native.request import CoreRequest, PoolingParams
from tests.native.cores import make_request


def an_input(name: str, num_tokens: int = 1, priority: int = 0) -> CoreRequest:
    """`a/0`, `a/1` and so on are inputs of the request a."""
    params = PoolingParams(mode="mean", group=name.split("/")[0])
    return msgspec.structs.replace(make_request(name, [5] * num_tokens), pooling=params, priority=priority)


def ids(queue: EncoderQueue, max_inputs: int = 100, max_tokens: int = 100, now: float = 1.0) -> list[str]:
    return [waiting.request.request_id for waiting in queue.take(max_inputs, max_tokens, now)]


def test_a_short_request_does_not_wait_for_all_of_a_long_one() -> None:
    queue = EncoderQueue()
    for number in range(2000):
        queue.add(an_input(f"long/{number}"), 0.0)
    assert ids(queue, 3) == ["long/0", "long/1", "long/2"]
    queue.add(an_input("short/0"), 1.0)
    assert "short/0" in ids(queue, 2, now=1.0)
    assert len(queue) == 1996


def test_requests_take_turns_and_keep_their_own_order() -> None:
    queue = EncoderQueue()
    for name in ("a/0", "a/1", "a/2", "b/0", "b/1", "c/0"):
        queue.add(an_input(name), 0.0)
    taken = ids(queue)
    assert taken[:3] == ["a/0", "b/0", "c/0"]
    assert sorted(taken) == ["a/0", "a/1", "a/2", "b/0", "b/1", "c/0"]
    assert [name for name in taken if name[0] == "a"] == ["a/0", "a/1", "a/2"]
    assert ids(queue) == []


def test_a_batch_stays_within_its_tokens_but_is_never_empty() -> None:
    queue = EncoderQueue()
    for number, length in enumerate([40, 60, 1, 300, 2]):
        queue.add(an_input(f"{number}/0", length), float(number))
    assert ids(queue) == ["0/0", "1/0"]
    assert ids(queue) == ["2/0"]
    assert ids(queue) == ["3/0"]
    assert ids(queue) == ["4/0"]


def test_priority_goes_first_and_waiting_makes_up_for_it() -> None:
    queue = EncoderQueue(ageing_s=10.0)
    queue.add(an_input("old/0", priority=1), 0.0)
    queue.add(an_input("new/0"), 5.0)
    assert ids(queue, 1) == ["new/0"]
    queue.add(an_input("newer/0"), 20.0)
    assert ids(queue, 1) == ["old/0"]


def test_what_is_aborted_is_not_taken() -> None:
    queue = EncoderQueue()
    for name in ("a/0", "a/1", "b/0"):
        queue.add(an_input(name), 0.0)
    assert queue.abort("a/0")
    assert not queue.abort("a/0")
    assert queue.abort("b/0")
    assert "b/0" not in queue
    queue.add(an_input("b/0"), 1.0)  # a line of the same name begins anew
    assert sorted(ids(queue)) == ["a/1", "b/0"]
    assert len(queue) == 0
    assert not queue.abort("a/1")
