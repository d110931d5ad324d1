"""Beam search against transformers' `generate`, from the decisions alone up to beams under preemption."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.native.cores import make_core, make_request, run
from tests.native.tiny_models import VOCAB_SIZE, TinyModel, save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)


def reference(
    model: TinyModel, prompt: list[int], *, eos: tuple[int, ...], max_tokens: int, **options: Any
) -> list[list[int]]:
    """transformers' best outputs, each cut after its end token, or as long as it is."""
    with torch.inference_mode():
        sequences = model.reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=list(eos) or None,
            pad_token_id=0,
            **options,
        )
    outputs = []
    for row in sequences[:, len(prompt) :].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in eos), len(row))
        outputs.append(row[:end])
    return outputs


@pytest.mark.parametrize("num_beams", [2, 3, 5])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_equals_transformers(model: TinyModel, num_beams: int, length_penalty: float, early_stopping: bool) -> None:
    # A fifth of the vocabulary ends an output, so that ends come early, late, and inside beams.
    eos_sets = [(), (2,), tuple(range(5, VOCAB_SIZE, 5))[:6], tuple(range(3, 23))]
    core = make_core(model)
    requests, expected = [], {}
    for number, eos in enumerate(eos_sets * 2):
        prompt = prompt_of(number, 3 + 4 * number)
        name = str(number)
        options: dict[str, Any] = {
            "num_beams": num_beams,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
        }
        requests.append(make_request(name, prompt, eos=eos, n=num_beams, max_tokens=10, **options))
        expected[name] = reference(model, prompt, eos=eos, max_tokens=10, num_return_sequences=num_beams, **options)
    outcomes = run(core, requests)
    for request in requests:
        name = request.request_id
        assert [outcome.token_ids for outcome in outcomes[name]] == expected[name], f"request {name}"
        for outcome in outcomes[name]:
            ended = outcome.token_ids[-1] in request.eos_token_ids
            assert outcome.finish_reason == ("stop" if ended else "length")


def test_repetition_penalty_acts_on_log_probabilities(model: TinyModel) -> None:
    prompt = prompt_of(7, 12)
    expected = reference(
        model, prompt, eos=(), max_tokens=12, num_beams=4, num_return_sequences=4, repetition_penalty=1.7
    )
    request = make_request("r", prompt, num_beams=4, n=4, max_tokens=12, repetition_penalty=1.7)
    assert [outcome.token_ids for outcome in run(make_core(model), [request])["r"]] == expected


@pytest.mark.parametrize("num_blocks", [9, 14])
def test_beams_under_preemption_equal_beams_alone(model: TinyModel, num_blocks: int) -> None:
    """A pool that cannot hold the beams side by side: they take turns, and nothing changes."""
    prompts = {str(number): prompt_of(number, 10 + number) for number in range(4)}
    requests = [
        make_request(name, prompt, num_beams=4, n=4, max_tokens=14, eos=(2, 9)) for name, prompt in prompts.items()
    ]
    plain = make_request("plain", prompt_of(99, 9), max_tokens=14)
    alone = {name: run(make_core(model), [request])[name] for name, request in zip(prompts, requests, strict=True)}
    core = make_core(model, num_blocks=num_blocks)
    together = run(core, [*requests, plain])
    assert core.stats().num_preemptions > 0
    for name in prompts:
        assert [o.token_ids for o in together[name]] == [o.token_ids for o in alone[name]]
    assert together["plain"][0].token_ids == run(make_core(model), [plain])["plain"][0].token_ids


def test_an_aborted_search_leaves_nothing(model: TinyModel) -> None:
    core = make_core(model)
    core.add(make_request("r", prompt_of(1, 20), num_beams=4, max_tokens=50))
    for _ in range(5):
        core.step()
    core.abort("r")
    stats = core.stats()
    assert not core.has_work
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
