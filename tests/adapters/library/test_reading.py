"""Tokens to pieces, on the tokenizer of single bytes."""

from __future__ import annotations

from typing import Any

from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.library.reading import TokenReader
from llm_inference.adapters.library.wire import Tokens, WorkerSampling

EOS = 1


def read(prompts: PromptSide, text: str, *more: int, stops: tuple[int, ...] = (), **said: Any) -> list[Piece]:
    ids = tuple(prompts.tokenizer.encode(text, add_special_tokens=False))
    sampling = WorkerSampling(max_tokens=99, stop_token_ids=stops)
    reader = TokenReader(prompts.tokenizer, (0,), sampling, skip_special_tokens=True)
    return list(reader.read(Tokens("r", (*ids, *more), **said)))


def test_one_piece_for_each_token(prompts: PromptSide) -> None:
    pieces = read(prompts, "ab")
    assert [(piece.text, piece.completion_tokens, piece.final) for piece in pieces] == [
        ("a", 1, False),
        ("b", 2, False),
    ]


def test_the_end_of_the_text_is_counted_and_not_shown(prompts: PromptSide) -> None:
    last = read(prompts, "a", EOS, finish_reason="stop")[-1]
    assert (last.text, last.token_ids, last.completion_tokens, last.finish_reason) == ("", (), 2, "stop")


def test_a_stop_token_is_left_to_whoever_shows_it(prompts: PromptSide) -> None:
    [stop] = prompts.tokenizer.encode("b", add_special_tokens=False)
    last = read(prompts, "ab", stops=(stop,), finish_reason="stop")[-1]
    assert (last.text, last.token_ids, last.final) == ("b", (stop,), True)


def test_a_character_that_the_limit_cuts(prompts: PromptSide) -> None:
    half = prompts.tokenizer.encode("é", add_special_tokens=False)[:1]
    pieces = read(prompts, "a", *half, finish_reason="length")
    assert "".join(piece.text for piece in pieces) == "a�"
    assert pieces[-1].finish_reason == "length"


def test_log_probabilities_are_named(prompts: PromptSide) -> None:
    a, b = prompts.tokenizer.encode("ab", add_special_tokens=False)
    [piece] = read(prompts, "a", logprobs=((-1.0, ((b, -0.5), (a, -1.0))),))
    [entry] = piece.logprobs
    assert (entry.token, entry.token_bytes, entry.logprob) == ("a", b"a", -1.0)
    assert [best[1] for best in entry.top] == ["b", "a"]
