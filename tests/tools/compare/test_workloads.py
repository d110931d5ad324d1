from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.errors import ConfigError
from llm_inference.text.tokenizer import Tokenizer
from llm_inference.tools.bench.lengths import Lengths
from llm_inference.tools.compare.workloads import NAMES, Suite, make_suite


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.load(default_model_dir)


@pytest.fixture(scope="module")
def suite(tokenizer: Tokenizer) -> Suite:
    return make_suite(tokenizer)


def test_the_table_of_the_module(suite: Suite) -> None:
    w1, w2, w3, w4, w5 = suite.workloads
    assert [work.name for work in suite.workloads] == list(NAMES)
    assert {(one.num_tokens, one.max_tokens) for one in w1.requests} == {(64, 128)}
    assert (len(w2.requests), w2.concurrency) == (64, 16)
    assert [one.max_tokens for one in w2.requests] == Lengths.parse("16:256").draw(66, 1, 1)[:64]
    assert [one.num_tokens for one in w2.requests] == Lengths.parse("16:512").draw(66, 1, 0)[:64]
    assert {(one.num_tokens, one.max_tokens) for one in w3.requests} == {(528, 32)}
    assert (len(w4.requests), {one.num_tokens for one in w4.late}) == (8, {4096})
    assert suite.max_model_len == 4097
    assert all(120 < one.num_tokens < 260 for one in w5.requests)


def test_text_and_ids_are_the_same_prompt(suite: Suite, tokenizer: Tokenizer) -> None:
    for work in suite.workloads:
        for one in (*work.requests, *work.late):
            assert tuple(tokenizer.encode(one.text)) == one.token_ids


def test_the_shared_beginning_is_shared_and_the_rest_is_not(suite: Suite) -> None:
    prompts = [one.token_ids or () for one in suite.workloads[2].requests]
    assert len({ids[:511] for ids in prompts}) == 1
    assert len({ids[:516] for ids in prompts}) == len(prompts)
    others = [one.token_ids or () for work in (suite.workloads[0], suite.workloads[1]) for one in work.requests]
    assert len({ids[:16] for ids in others}) == len(others)


def test_the_same_again(tokenizer: Tokenizer) -> None:
    assert make_suite(tokenizer, ["W1"]) == make_suite(tokenizer, ["W1"])


def test_without_a_tokenizer_words_count() -> None:
    work = make_suite(None, ["W2"], quick=True).workloads[0]
    assert [one.token_ids for one in work.requests] == [None] * 6
    assert all(one.num_tokens == len(one.text.split()) for one in work.requests)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="'W9' is none; there are W1"):
        make_suite(None, ["W1", "W9"])
