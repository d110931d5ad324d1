from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.api import ModelCard, open_api
from llm_inference.tools.bench.dialect import Dialect
from llm_inference.tools.bench.lengths import Lengths
from llm_inference.tools.bench.prompts import TOKEN_IDS
from llm_inference.tools.bench.settings import BenchSettings
from llm_inference.tools.bench.workload import Workload, WorkloadBuilder
from tests.tools.bench.scripted import Script, count_words, scripted

MODEL = ModelCard("scripted", 1000)


async def built(script: Script, count: int | None = 6, *, dialect: Dialect | None = None, **settings: Any) -> Workload:
    async with scripted(script) as server:
        chosen = BenchSettings(url=server.url, **{"input_len": Lengths.parse("20:60"), "warmup": 2, **settings})
        async with open_api(chosen) as api:
            return await WorkloadBuilder(api, chosen, MODEL, dialect or Dialect()).build(count)


def bodies(workload: Workload) -> list[dict[str, Any]]:
    return [msgspec.json.decode(call.body) for call in workload.calls]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_with_a_tokenizer_lengths_are_exact(endpoint: Any) -> None:
    workload = await built(Script(tokenizer=True), endpoint=endpoint, output_len=Lengths.parse("3:9"))
    lengths = Lengths.parse("20:60").draw(8, 0, 0)
    assert [count_words(body) for body in bodies(workload)] == lengths[:6]
    assert [call.planned_input_tokens for call in (*workload.calls, *workload.warmup)] == lengths
    assert [body["max_tokens"] for body in bodies(workload)] == Lengths.parse("3:9").draw(8, 0, 1)[:6]
    assert [call.index for call in workload.calls] == list(range(6))
    assert "/tokenize" in workload.source
    assert workload.notes == ()


async def test_a_seed_decides_and_prompts_differ() -> None:
    first, again, other = [await built(Script(tokenizer=True), seed=seed) for seed in (1, 1, 2)]
    assert first == again
    assert {call.body for call in first.calls}.isdisjoint({call.body for call in other.calls})
    assert len({call.body for call in (*first.calls, *first.warmup)}) == 8


async def test_the_number_of_warm_ups_does_not_change_what_is_measured() -> None:
    assert (await built(Script(tokenizer=True), warmup=0)).calls == (await built(Script(tokenizer=True))).calls


async def test_a_prefix_comes_on_top_and_is_shared() -> None:
    workload = await built(Script(tokenizer=True), prefix_len=30, input_len=Lengths.fixed(12))
    texts = [body["messages"][0]["content"] for body in bodies(workload)]
    assert [count_words(body) for body in bodies(workload)] == [42] * 6
    words = [text.split() for text in texts]
    assert all(one[:30] == words[0][:30] for one in words)
    assert len({tuple(one[30:]) for one in words}) == 6


async def test_without_a_tokenizer_completions_send_token_ids() -> None:
    workload = await built(Script(), endpoint="completions", prefix_len=5)
    prompts = [body["prompt"] for body in bodies(workload)]
    assert [len(prompt) for prompt in prompts] == [5 + length for length in Lengths.parse("20:60").draw(8, 0, 0)[:6]]
    assert all(TOKEN_IDS[0] <= token < TOKEN_IDS[1] for prompt in prompts for token in prompt)
    assert all(prompt[:5] == prompts[0][:5] for prompt in prompts)
    assert len({tuple(prompt) for prompt in prompts}) == 6
    assert "token ids" in workload.source


@pytest.mark.parametrize(("endpoint", "template"), [("chat", 5), ("completions", 0)])
async def test_without_either_usage_says_what_words_are_worth(endpoint: Any, template: int) -> None:
    workload = await built(Script(token_ids=False), endpoint=endpoint, input_len=Lengths.fixed(40), prefix_len=10)
    assert "usage" in workload.source
    assert [count_words(body) for body in bodies(workload)] == [50] * 6
    assert [call.planned_input_tokens for call in workload.calls] == [50] * 6
    text = bodies(workload)[0]["prompt" if endpoint == "completions" else "messages"]
    words = text if isinstance(text, str) else text[0]["content"]
    assert len(words.split()) == 50 - template


async def test_without_anything_a_word_is_a_token() -> None:
    workload = await built(Script(usage="none"), input_len=Lengths.fixed(40))
    assert "one taken for one token" in workload.source
    assert len(bodies(workload)[0]["messages"][0]["content"].split()) == 40


async def test_lengths_below_the_template_are_said() -> None:
    workload = await built(Script(tokenizer=True), input_len=Lengths.fixed(2))
    assert [count_words(body) for body in bodies(workload)] == [6] * 6
    (note,) = workload.notes
    assert "8 of 8 prompts" in note
    assert "6 tokens at most" in note


async def test_more_than_the_context_is_refused_before_the_load() -> None:
    with pytest.raises(ConfigError, match=r"8 of 8 requests need more than the 1000 tokens .*up to 1100"):
        await built(Script(tokenizer=True), input_len=Lengths.fixed(900), output_len=Lengths.fixed(200))


def write(tmp_path: Path, count: int) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"number {number}"} | ({"max_tokens": 3} if number == 1 else {}) for number in range(count)]
    file.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    return file


async def test_a_dataset_is_sent_as_it_is(tmp_path: Path) -> None:
    workload = await built(Script(), None, dataset=write(tmp_path, 4), output_len=Lengths.fixed(9), warmup=1)
    assert [body["messages"] for body in bodies(workload)] == [
        [{"role": "user", "content": f"number {number}"}] for number in range(4)
    ]
    assert [call.max_tokens for call in workload.calls] == [9, 3, 9, 9]
    assert len(workload.warmup) == 1
    assert "repeats" in workload.notes[0]


async def test_the_warm_up_takes_rows_that_are_not_measured(tmp_path: Path) -> None:
    workload = await built(Script(), 3, dataset=write(tmp_path, 5), endpoint="completions")
    assert [body["prompt"] for body in bodies(workload)] == ["number 0", "number 1", "number 2"]
    assert [msgspec.json.decode(call.body)["prompt"] for call in workload.warmup] == ["number 3", "number 4"]
    assert workload.notes == ()


async def test_a_warm_up_longer_than_the_dataset_goes_round(tmp_path: Path) -> None:
    workload = await built(Script(), None, dataset=write(tmp_path, 2), warmup=5)
    assert len(workload.warmup) == 5
    assert len(workload.calls) == 2


async def test_no_prompt_is_sent_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 prompts, 3 are wanted"):
        await built(Script(), 3, dataset=write(tmp_path, 2))
