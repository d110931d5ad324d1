from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_inference.engine.base import Capabilities
from llm_inference.engine.byte_tokens import count as count_bytes
from llm_inference.engine.fake import FakeEngine
from llm_inference.engine.types import ChatPrompt, EmbedRequest, GenerateRequest, Prompt, SamplingParams
from llm_inference.gateway.tenants import tokens

CHAT = ChatPrompt(messages=({"role": "user", "content": "hëllo"}, {"role": "assistant", "content": [{"text": "x"}]}))


def request(prompt: Prompt = "p", **sampling: int) -> GenerateRequest:
    return GenerateRequest(request_id="r", model="m", prompt=prompt, sampling=SamplingParams(**sampling))


def test_token_ids_are_counted_and_text_is_guessed() -> None:
    assert tokens.estimate([(1, 2, 3)]) == 3
    assert tokens.estimate(["a" * 100]) == 25
    assert tokens.estimate(["é"]) == 1
    assert tokens.estimate(["a" * 100, (1,)]) == 26
    assert tokens.estimate([CHAT]) > 8


@given(st.text(max_size=200))
def test_bytes_bound_the_tokens_of_a_byte_tokenizer(text: str) -> None:
    """Nothing makes more tokens of a text than one for each byte, special tokens aside."""
    text = text.encode("utf-8", "ignore").decode()
    assert count_bytes(text, add_special_tokens=True) <= tokens.at_most(text) + tokens.MESSAGE_TOKENS


async def test_counting_asks_the_engine() -> None:
    engine = FakeEngine()
    assert await tokens.count(engine, "hello") == len((await engine.tokenize("hello")).token_ids)
    assert await tokens.count(engine, (1, 2)) == 2
    silent = FakeEngine(capabilities=Capabilities())
    assert await tokens.count(silent, "a" * 40) == 10


@pytest.mark.parametrize(
    ("sampling", "limit", "expected"),
    [
        ({"max_tokens": 7}, None, 7),
        ({"max_tokens": 7, "n": 3}, None, 21),
        ({"max_tokens": 7, "n": 2, "best_of": 4}, None, 28),
        ({}, None, tokens.DEFAULT_OUTPUT_TOKENS),
        ({}, 50, 50),
        ({}, 5000, 1000),
    ],
)
def test_an_answers_bound(sampling: dict[str, int], limit: int | None, expected: int) -> None:
    assert tokens.output_tokens(request(**sampling), limit, 1000) == expected


def test_vectors_have_no_output() -> None:
    work = EmbedRequest(request_id="r", model="m", inputs=("a", (1, 2)))
    assert tokens.output_tokens(work, None, 100) == 0
    assert tokens.prompts_of(work) == ("a", (1, 2))


def test_a_guess_is_no_longer_than_the_context() -> None:
    assert tokens.likely_tokens(request("p" * 10_000, max_tokens=2**24, n=3), 100) == 100 + 300
    short = request("pppp", max_tokens=5, n=2)
    assert tokens.likely_tokens(short, 100) == tokens.estimate(("pppp",)) + 10
    assert tokens.likely_tokens(short, 0) == tokens.estimate(("pppp",)) + 10
