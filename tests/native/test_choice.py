"""A choice's text against the tokenizer's own decode, however its tokens arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.engine.types import ChatPrompt, Delta, SamplingParams
from llm_inference.native.choice import Choice
from llm_inference.native.request import SampledToken
from llm_inference.text.parsing import OutputFormat
from llm_inference.text.tokenizer import Tokenizer

TEXT = "Zażółć 🦕 and 你好, then STOP here."
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def tokenizer(default_model_dir: Path) -> Tokenizer:
    return Tokenizer.load(default_model_dir)


def feed(
    tokenizer: Tokenizer,
    token_ids: list[int],
    size: int,
    finish: str,
    *,
    output: OutputFormat | None = None,
    **sampling: Any,
) -> tuple[list[Delta], Choice]:
    """The deltas of `token_ids`, `size` at a time; the last piece ends with `finish`."""
    choice = Choice(0, SamplingParams(**sampling), tokenizer, (), output or OutputFormat())
    deltas = []
    for start in range(0, len(token_ids), size):
        last = start + size >= len(token_ids)
        tokens = [SampledToken(token_id, -0.5) for token_id in token_ids[start : start + size]]
        delta = choice.feed(tokens, finish if last else None, None)  # type: ignore[arg-type]
        if delta is not None:
            deltas.append(delta)
        if choice.finished:
            break
    return deltas, choice


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_joined_deltas_equal_decode_and_eos_is_counted_not_shown(tokenizer: Tokenizer, size: int) -> None:
    ids = tokenizer.encode(TEXT)
    assert tokenizer.eos_token_id is not None
    deltas, choice = feed(tokenizer, [*ids, tokenizer.eos_token_id], size, "stop")
    assert "".join(delta.text for delta in deltas) == TEXT
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert choice.num_tokens == len(ids) + 1
    assert sum(len(delta.token_ids) for delta in deltas) == len(ids)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stop_string_ends_the_choice_before_the_core_knows(tokenizer: Tokenizer, size: int) -> None:
    ids = tokenizer.encode(TEXT)
    deltas, choice = feed(tokenizer, ids, size, "length", stop=("then STOP",))
    assert "".join(delta.text for delta in deltas) == TEXT.partition("then STOP")[0]
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].stop_reason == "then STOP"
    assert choice.stopped_by_text is (size < len(ids))


def test_stop_string_counts_only_after_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two one two one two")
    deltas, choice = feed(tokenizer, ids, 1, "length", stop=(" two",), min_tokens=3)
    assert "".join(delta.text for delta in deltas) == "one two one"
    assert choice.num_tokens == 4


def test_a_character_cut_by_the_length_is_flushed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🦕")
    assert len(ids) > 1
    deltas, _ = feed(tokenizer, ids[:-1], 1, "length")
    assert "".join(delta.text for delta in deltas) == tokenizer.decode(ids[:-1])


def test_logprob_entries_carry_bytes_and_offsets(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    deltas, choice = feed(tokenizer, ids, 2, "length", logprobs=0)
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert b"".join(entry.token_bytes for entry in entries).decode() == TEXT
    assert [entry.token_id for entry in entries] == ids
    for entry in entries:
        whole = entry.token_bytes.decode("utf-8", "ignore")
        if whole and "bytes:" not in entry.token:
            assert TEXT[entry.text_offset :].startswith(whole)
    assert choice.cumulative_logprob == pytest.approx(-0.5 * len(ids))


def test_tool_call_turns_stop_into_tool_calls_and_one_call_may_be_enough(tokenizer: Tokenizer) -> None:
    prompt = ChatPrompt(messages=(), tools=(TOOL,))
    call = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
    ids = tokenizer.encode(call + "\n" + call)
    for parallel, count in ((True, 2), (False, 1)):
        output = OutputFormat(tool="hermes", prompt=prompt, parallel=parallel)
        deltas, choice = feed(tokenizer, [*ids, 2], 1, "stop", output=output)
        fragments = [fragment for delta in deltas for fragment in delta.tool_calls]
        assert len({fragment.index for fragment in fragments}) == count
        assert deltas[-1].finish_reason == "tool_calls"
        assert "".join(delta.text for delta in deltas) == ""
        assert choice.stopped_by_text is not parallel


def test_reasoning_is_split_off_and_counted(tokenizer: Tokenizer) -> None:
    output = OutputFormat(reasoning="think", prompt=ChatPrompt(messages=()))
    ids = tokenizer.encode("<think>two and two</think>Four.")
    deltas, choice = feed(tokenizer, [*ids, 2], 1, "stop", output=output)
    assert "".join(delta.reasoning for delta in deltas).strip() == "two and two"
    assert "".join(delta.text for delta in deltas).strip() == "Four."
    assert 0 < choice.num_reasoning_tokens < len(ids)
