"""Sampling from logits against closed forms and, for what may be drawn, against plain definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from llm_inference.adapters.library.wire import WorkerSampling
from llm_inference.adapters.library.workers.onnx_sampling import TokenSampler, log_probabilities

PROBABILITIES = [0.5, 0.25, 0.15, 0.1]
LOGITS = np.log(np.array(PROBABILITIES, dtype=np.float32))


def sampler(prompt: list[int] | None = None, **more: Any) -> TokenSampler:
    said = WorkerSampling(**{"max_tokens": 8, "temperature": 1.0, "seed": 1, **more})
    return TokenSampler({name: getattr(said, name) for name in said.__struct_fields__}, prompt or [])


def drawn(number: int = 2000, **more: Any) -> list[float]:
    chooser = sampler(**more)
    tokens = [chooser.choose(LOGITS) for _ in range(number)]
    return [tokens.count(token) / number for token in range(len(LOGITS))]


def test_temperature_zero_takes_the_best() -> None:
    assert {sampler(temperature=0.0, seed=seed).choose(LOGITS) for seed in range(20)} == {0}


def test_draws_follow_the_distribution() -> None:
    assert drawn() == pytest.approx(PROBABILITIES, abs=0.04)


def test_temperature_flattens() -> None:
    weights = [math.sqrt(p) for p in PROBABILITIES]
    assert drawn(temperature=2.0) == pytest.approx([w / sum(weights) for w in weights], abs=0.04)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"top_k": 1}, [0]),
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 99}, [0, 1, 2, 3]),
        ({"top_p": 0.4}, [0]),
        ({"top_p": 0.6}, [0, 1]),
        ({"top_p": 0.8}, [0, 1, 2]),
        ({"min_p": 0.4}, [0, 1]),
        ({"min_p": 1.0}, [0]),
        ({"top_k": 2, "top_p": 0.7}, [0, 1]),  # of the 0.75 that top_k leaves, 0.5 is two thirds
    ],
)
def test_the_nucleus(limits: dict[str, Any], kept: list[int]) -> None:
    total = sum(PROBABILITIES[token] for token in kept)
    expected = [p / total if token in kept else 0.0 for token, p in enumerate(PROBABILITIES)]
    assert drawn(**limits) == pytest.approx(expected, abs=0.04)


def test_a_seed_repeats_and_none_does_not() -> None:
    def run(seed: int | None) -> list[int]:
        chooser = sampler(seed=seed)
        return [chooser.choose(LOGITS) for _ in range(40)]

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert run(None) != run(None)


def test_repetition_counts_the_prompt_too() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.1], dtype=np.float32)
    assert sampler([0], temperature=0.0, repetition_penalty=2.0).choose(logits) == 1
    negative = np.array([-1.0, -1.5, -9.0, -9.0], dtype=np.float32)
    assert sampler([0], temperature=0.0, repetition_penalty=2.0).choose(negative) == 1


def test_presence_and_frequency_count_the_output_alone() -> None:
    logits = np.array([2.0, 1.0, 0.0, 0.0], dtype=np.float32)
    for name, needed in (("presence_penalty", 1.5), ("frequency_penalty", 0.6)):
        chooser = sampler([0, 0, 0], temperature=0.0, **{name: needed})
        assert chooser.choose(logits) == 0
        chooser.add(0)
        chooser.add(0)
        assert chooser.choose(logits) == 1


def test_bias_bars_and_forces() -> None:
    assert sampler(temperature=0.0, logit_bias={0: -100.0}).choose(LOGITS) == 1
    assert sampler(temperature=0.0, logit_bias={3: 100.0}).choose(LOGITS) == 3


def test_min_tokens_bars_the_ends() -> None:
    chooser = sampler(temperature=0.0, min_tokens=1, eos_token_ids=(0,), stop_token_ids=(1,))
    assert chooser.choose(LOGITS) == 2
    chooser.add(2)
    assert chooser.choose(LOGITS) == 0
    assert chooser.ends == {0, 1}
    assert sampler(eos_token_ids=(0,), stop_token_ids=(1,), ignore_eos=True).ends == {1}


def test_the_forced_token_comes_last() -> None:
    chooser = sampler(temperature=0.0, max_tokens=2, forced_eos_token_id=3)
    assert chooser.choose(LOGITS) == 0
    chooser.add(0)
    assert chooser.choose(LOGITS) == 3


def test_choosing_leaves_the_logits_as_they_are() -> None:
    before = LOGITS.copy()
    sampler([0], repetition_penalty=3.0, logit_bias={1: 5.0}).choose(LOGITS)
    assert (before == LOGITS).all()


def test_log_probabilities() -> None:
    value, best = log_probabilities(LOGITS + 7, 2, 2)
    assert value == pytest.approx(math.log(0.15), abs=1e-6)
    assert [token for token, _ in best] == [0, 1]
    assert [logprob for _, logprob in best] == pytest.approx([math.log(0.5), math.log(0.25)], abs=1e-6)
    assert log_probabilities(LOGITS, 0, 0)[1] == []
    assert len(log_probabilities(LOGITS, 0, 9)[1]) == 4
