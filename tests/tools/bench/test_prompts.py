from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from llm_inference.tools.bench.prompts import (
    TOKEN_IDS,
    Text,
    WordRate,
    estimated_text,
    fitted_text,
    gathered,
    random_token_ids,
    random_words,
)


def rng(number: int = 0) -> np.random.Generator:
    return np.random.default_rng(number)


async def count_bytes(text: str) -> int:
    return len(text.encode()) + 1


async def count_words(text: str) -> int:
    return 7 + len(text.split())


def counting_with(tokenizer: tokenizers.Tokenizer) -> Callable[[str], Awaitable[int]]:
    async def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)

    return count


async def test_the_rate_of_words_is_what_two_counts_say() -> None:
    rate = await WordRate.measure(count_words)
    assert rate == WordRate(7.0, 1.0)
    assert rate is not None
    assert (rate.words_for(20), rate.tokens_of(13), rate.words_for(3)) == (13, 20, 1)


async def test_no_rate_without_counts() -> None:
    async def nothing(text: str) -> None:
        return None

    async def constant(text: str) -> int:
        return 5

    assert await WordRate.measure(nothing) is None
    assert await WordRate.measure(constant) is None


@pytest.mark.parametrize("count", [count_words, count_bytes])
async def test_texts_are_of_exactly_the_length(count: Callable[[str], Awaitable[int]]) -> None:
    rate = await WordRate.measure(count)
    assert rate is not None
    for number, length in enumerate(range(20, 300, 7)):
        text = await fitted_text(rng(number), rate, count, length)
        assert text.num_tokens == length == await count(text.text)


async def test_texts_are_exact_for_a_real_tokenizer(default_model_dir: Path) -> None:
    count = counting_with(tokenizers.Tokenizer.from_file(str(default_model_dir / "tokenizer.json")))
    rate = await WordRate.measure(count)
    assert rate is not None
    prefix = (await fitted_text(rng(99), rate, count, 40)).text
    for number, length in enumerate(range(50, 600, 25)):
        text = await fitted_text(rng(number), rate, count, length, prefix)
        assert text.text.startswith(prefix + " ")
        assert text.num_tokens == length == await count(text.text)


async def test_a_text_has_at_least_one_word() -> None:
    rate = await WordRate.measure(count_words)
    assert rate is not None
    text = await fitted_text(rng(), rate, count_words, 3)
    assert (len(text.text.split()), text.num_tokens) == (1, 8)


async def test_stops_that_merge_do_not_stall_it() -> None:
    async def count(text: str) -> int:
        # Every third word is two tokens, and any number of full stops is one.
        return sum(1 + (len(word) % 3 == 0) for word in text.rstrip(".").split()) + text.endswith(".")

    rate = await WordRate.measure(count)
    assert rate is not None
    texts = [await fitted_text(rng(number), rate, count, 50 + number) for number in range(40)]
    assert [text.num_tokens for text in texts] == list(range(50, 90))


async def test_a_count_that_stops_answering_is_an_error() -> None:
    async def nothing(text: str) -> None:
        return None

    with pytest.raises(ValueError, match="counted"):
        await fitted_text(rng(), WordRate(0, 1), nothing, 5)


def test_an_estimate_counts_the_prefix() -> None:
    text = estimated_text(rng(), WordRate(5, 1), 25, "one two three")
    assert text.text.startswith("one two three ")
    assert (len(text.text.split()), text.num_tokens) == (20, 25)


def test_a_seed_decides_on_words_and_ids() -> None:
    assert random_words(rng(1), 9) == random_words(rng(1), 9) != random_words(rng(2), 9)
    ids = random_token_ids(rng(1), 500)
    assert ids == random_token_ids(rng(1), 500)
    assert TOKEN_IDS[0] <= min(ids) <= max(ids) < TOKEN_IDS[1]


async def test_gathered_keeps_the_order_and_the_limit() -> None:
    import asyncio

    running = peak = 0

    async def job(number: int) -> Text:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.002 * (5 - number % 5))
        running -= 1
        return Text(str(number), number)

    ticks: list[int] = []
    texts = await gathered([job(number) for number in range(12)], lambda: ticks.append(1), limit=3)
    assert [text.num_tokens for text in texts] == list(range(12))
    assert (peak, len(ticks)) == (3, 12)
