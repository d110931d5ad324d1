from __future__ import annotations

import math

import pytest

from llm_inference.engine.types import TokenLogprob, Usage
from llm_inference.gateway.openai import replies


@pytest.mark.parametrize(
    ("logprob", "safe"),
    [(-0.5, -0.5), (0.0, 0.0), (-math.inf, -9999.0), (math.nan, -9999.0), (math.inf, 0.0), (-1e9, -9999.0)],
)
def test_logprobs_are_numbers_that_json_has(logprob: float, safe: float) -> None:
    assert replies.safe_logprob(logprob) == safe


def test_bytes_of_a_split_character() -> None:
    token = TokenLogprob(1, "\ufffd", -1.0, b"\xc3", ((1, "\ufffd", -1.0, b"\xc3"), (2, "a", -2.0, b"")))
    (entry,) = replies.chat_logprobs([token], 2)
    assert entry.bytes == [0xC3]
    assert [top.bytes for top in entry.top_logprobs] == [[0xC3], [97]]
    assert replies.chat_logprobs([token], 0)[0].top_logprobs == []


def test_alternatives_that_read_alike_are_one() -> None:
    top = ((1, "\ufffd", -1.0, b"\xc3"), (2, "\ufffd", -2.0, b"\xc4"), (3, "a", -3.0, b"a"))
    got = replies.completion_logprobs([TokenLogprob(9, "z", -5.0, b"z", top, 4)], 3)
    assert got.top_logprobs == [{"\ufffd": -1.0, "a": -3.0, "z": -5.0}]
    assert got.text_offset == [4]


def test_usage() -> None:
    usage = replies.usage_reply(Usage(10, 4, 6, 2))
    assert usage.total_tokens == 14
    assert usage.prompt_tokens_details.cached_tokens == 6
    assert usage.completion_tokens_details.reasoning_tokens == 2


def test_unset_is_not_written() -> None:
    chunk = replies.ChatCompletionChunk("id", 0, "m", [replies.ChatChunkChoice(0, replies.ChatDelta(content="x"))])
    assert replies.encoder.encode(chunk) == (
        b'{"id":"id","created":0,"model":"m","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],'
        b'"object":"chat.completion.chunk"}'
    )
