from __future__ import annotations

import pytest

from llm_inference.errors import UnsupportedModelError
from llm_inference.sources.gguf.pretokenizers import _KINDS, _NAMES, find_pre_tokenizer

SENTENCES = ["Hello world's 12345 ½ 你好！\n\n  x\t", "", "Ελληνικά ΩΩ Ⅷ", "a" * 2000, " " * 2000, "!" * 2000]


def test_every_name_leads_to_patterns_that_compile_and_lose_nothing() -> None:
    names = [name for listed in _NAMES.values() for name in listed.split()]
    assert len(names) == len(set(names))
    assert set(_NAMES) == set(_KINDS)
    for name in names:
        built = find_pre_tokenizer(name).build()
        for text in SENTENCES:
            # The pieces lie side by side and cover the text.
            spans = [span for _, span in built.pre_tokenize_str(text)]
            ends = [0, *(end for _, end in spans)]
            assert [start for start, _ in spans] == ends[:-1], name
            assert ends[-1] == len(text), name


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("default", "ab 1234", ["ab", "Ġ", "123", "4"]),
        ("falcon", "ab 1234!", ["ab", "Ġ", "123", "4", "!"]),
        ("smollm", "ab 12", ["ab", "Ġ", "1", "2"]),
        ("llama-bpe", "ab 1234", ["ab", "Ġ", "123", "4"]),
        ("qwen2", "ab 12", ["ab", "Ġ", "1", "2"]),
        ("deepseek-v3", "ab 1234!x", ["ab", "Ġ", "123", "4", "!x"]),
        ("deepseek-llm", "Ab 12\n", ["Ab", "Ġ", "12", "Ċ"]),
        ("tekken", "serverHTTP 12", ["server", "HTTP", "Ġ", "1", "2"]),
        ("gpt-4o", "don't 1234", ["don't", "Ġ", "123", "4"]),
        ("bloom", "a, b", ["a", ",", "Ġb"]),
        ("viking", "a 12", ["a", "Ġ", "1", "2"]),
    ],
)
def test_words_of_the_rarer_families(name: str, text: str, words: list[str]) -> None:
    assert [word for word, _ in find_pre_tokenizer(name).build().pre_tokenize_str(text)] == words


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"tokenizer\.ggml\.pre is 'gpt', a pre-tokenizer that is not known"
    ):
        find_pre_tokenizer("gpt")
