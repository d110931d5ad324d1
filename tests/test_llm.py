"""The offline door, with the real default model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_inference import LLM, SamplingParams
from llm_inference.errors import ConfigError, ContextLengthError

pytestmark = pytest.mark.e2e

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm(default_model_dir: Path) -> Iterator[LLM]:
    with LLM(str(default_model_dir), max_batch_size=3, kv_cache_memory="512MiB", progress=False) as llm:
        yield llm


def test_one_prompt_text_or_ids(llm: LLM) -> None:
    [by_text] = llm.generate("The capital of France is", GREEDY)
    assert "Paris" in by_text.text
    [by_ids] = llm.generate([by_text.prompt_token_ids], GREEDY)
    assert by_ids.token_ids == by_text.token_ids
    assert by_text.usage.completion_tokens == 8


def test_a_long_list_is_split_and_keeps_its_order(llm: LLM) -> None:
    prompts = [f"{number} + {number} =" for number in range(10)]
    together = llm.generate(prompts, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [output.text for output in together] == [output.text for output in alone]
    assert [output.prompt for output in together] == prompts


def test_at_most_max_batch_size_run_at_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    step = llm._core.step

    def watched() -> object:
        nonlocal most
        stats = llm._core.stats()
        most = max(most, stats.num_running + stats.num_waiting)
        return step()

    monkeypatch.setattr(llm._core, "step", watched)
    llm.generate(["Hello"] * 8, GREEDY)
    assert most == 3


def test_chat_and_sampling_each(llm: LLM) -> None:
    [answer] = llm.chat([{"role": "user", "content": "What is the capital of France?"}], GREEDY)
    assert "Paris" in answer.text
    short, long = llm.generate(["Hello", "Hello"], [GREEDY, SamplingParams(temperature=0.0, max_tokens=12)])
    assert long.text.startswith(short.text)
    with pytest.raises(ValueError, match="one each"):
        llm.generate(["a", "b"], [GREEDY])


def test_prompt_logprobs(llm: LLM) -> None:
    [output] = llm.generate("The capital of France is", SamplingParams(max_tokens=1, prompt_logprobs=1, logprobs=1))
    assert output.prompt_logprobs is not None
    assert [entry.token_id for entry in output.prompt_logprobs] == list(output.prompt_token_ids)
    assert output.prompt_logprobs[0].logprob is None
    assert all(entry.logprob is not None for entry in output.prompt_logprobs[1:])


def test_a_wrong_prompt_stops_the_list_before_it_starts(llm: LLM) -> None:
    with pytest.raises(ContextLengthError):
        llm.generate(["fine", "word " * 9000], GREEDY)
    assert not llm._core.has_work


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM("anything", max_model_length=5)
