"""The whole core on a tiny model: every request equals its solo run, whatever happens around it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from llm_inference.errors import ContextLengthError, EngineError, InvalidRequestError
from llm_inference.native.core import StepResult, check_healthy
from llm_inference.native.request import CoreRequest
from tests.native.cores import make_core, make_request, run
from tests.native.tiny_models import VOCAB_SIZE, TinyModel, save_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def prompts_with_shared_prefixes(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    stems = [rng.choices(range(3, VOCAB_SIZE), k=rng.randint(9, 30)) for _ in range(3)]
    return [
        rng.choice(stems)[: rng.randint(1, 30)] + rng.choices(range(3, VOCAB_SIZE), k=rng.randint(1, 12))
        for _ in range(count)
    ]


def greedy_reference(model: TinyModel, prompt: list[int], max_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(int(model.logits(token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_greedy_equals_transformers_with_preemption_and_eviction(model: TinyModel, prefix_caching: bool) -> None:
    prompts = prompts_with_shared_prefixes(24)
    core = make_core(model, num_blocks=26, prefix_caching=prefix_caching, max_num_batched_tokens=20)
    requests = [make_request(str(i), prompt, max_tokens=16) for i, prompt in enumerate(prompts)]
    outcomes = run(core, requests)
    stats = core.stats()
    assert stats.num_preemptions > 0
    if prefix_caching:
        assert stats.num_evictions > 0
        assert stats.prefix_cache_hits > 0
    for i, prompt in enumerate(prompts):
        assert outcomes[str(i)][0].token_ids == greedy_reference(model, prompt, 16), f"prompt {i}"
        assert outcomes[str(i)][0].finish_reason == "length"


def varied(number: int, prompt: list[int]) -> CoreRequest:
    rng = random.Random(number)
    options: dict[str, Any] = rng.choice(
        [
            {"temperature": 1.0, "seed": number},
            {"temperature": 0.7, "seed": number, "top_k": 20, "top_p": 0.9, "n": 3},
            {"temperature": 1.3, "seed": number, "min_p": 0.02, "repetition_penalty": 1.2},
            {"n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
            {"logprobs": 3},
            {"temperature": 1.0, "seed": number, "logit_bias": {5: 4.0}, "min_tokens": 4},
        ]
    )
    return make_request(str(number), prompt, max_tokens=rng.randint(4, 16), eos=(2, 7), **options)


def test_every_request_equals_its_solo_run(model: TinyModel) -> None:
    """n, seeds, penalties and logprobs beside unseeded neighbours, in a pool that preempts and evicts."""
    prompts = prompts_with_shared_prefixes(30, seed=5)
    requests = [varied(i, prompt) for i, prompt in enumerate(prompts)]
    noise = [make_request(f"noise-{i}", prompt, temperature=1.0) for i, prompt in enumerate(prompts[:8])]
    core = make_core(model, num_blocks=40, max_num_batched_tokens=24)
    together = run(core, [r for pair in zip(requests, [*noise, *[None] * 22], strict=True) for r in pair if r])
    stats = core.stats()
    assert min(stats.num_preemptions, stats.num_evictions, stats.prefix_cache_hits) > 0
    for request in requests:
        alone = run(make_core(model), [request])[request.request_id]
        crowded = together[request.request_id]
        assert [c.token_ids for c in crowded] == [c.token_ids for c in alone], request.request_id
        assert [c.finish_reason for c in crowded] == [c.finish_reason for c in alone]
        for ours, theirs in zip(crowded, alone, strict=True):
            for a, b in zip(ours.tokens, theirs.tokens, strict=True):
                assert a.logprob == (b.logprob if b.logprob is None else pytest.approx(b.logprob, abs=1e-4))


def test_prompt_logprobs_equal_a_forward_pass_across_chunks_and_preemption(model: TinyModel) -> None:
    prompt = prompts_with_shared_prefixes(1, seed=3)[0] * 2
    request = make_request("scored", prompt, max_tokens=2, prompt_logprobs=2, logprobs=2)
    core = make_core(model, max_num_batched_tokens=16)
    run(core, [make_request("warm", prompt, max_tokens=1)])  # the prefix is cached and must not be used
    core.add(request)
    entries = []
    while core.has_work:
        for part in core.step().prompt_logprobs:
            entries += part.tokens
    logprobs = torch.log_softmax(model.logits(prompt), -1)
    assert [entry.token_id for entry in entries] == prompt[1:]
    for position, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(float(logprobs[position, prompt[position + 1]]), abs=1e-4)
        assert [token_id for token_id, _ in entry.top] == logprobs[position].topk(2).indices.tolist()


def test_a_request_that_can_never_fit_is_refused_and_others_go_on(model: TinyModel) -> None:
    core = make_core(model, num_blocks=8)
    with pytest.raises(ContextLengthError, match="KV cache holds 32 tokens"):
        core.add(make_request("big", range(3, 40)))
    assert not core.is_live("big")
    assert run(core, [make_request("small", [3, 4, 5])])["small"][0].finish_reason == "length"


def test_more_choices_than_seats_are_refused(model: TinyModel) -> None:
    with pytest.raises(InvalidRequestError, match="max_num_seqs"):
        make_core(model, max_num_seqs=2).add(make_request("r", [3, 4], n=3))


def test_aborting_one_choice_leaves_the_others_as_they_are(model: TinyModel) -> None:
    request = make_request("r", [3, 4, 5, 6, 7], n=3, temperature=1.0, seed=1, max_tokens=20)
    whole = run(make_core(model), [request])["r"]
    core = make_core(model)
    core.add(request)
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number in range(100):
        for output in core.step().outputs:
            tokens[output.index] += [token.token_id for token in output.tokens]
        if number == 4:
            core.abort("r", 1)
    assert not core.is_live("r")
    assert tokens[0] == whole[0].token_ids
    assert tokens[2] == whole[2].token_ids
    assert len(tokens[1]) < 20


def test_a_failing_step_ends_its_requests_and_no_other(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(model)
    core.add(make_request("doomed", [3, 4, 5]))

    def explode(model_input: object) -> torch.Tensor:
        raise RuntimeError("kernel died")

    with monkeypatch.context() as patch:
        patch.setattr(core._runner, "execute", explode)
        result = core.step()
    assert [failure.request_id for failure in result.failures] == ["doomed"]
    assert "kernel died" in result.failures[0].message
    assert not core.has_work
    stats = core.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    assert run(core, [make_request("next", [3, 4, 5])])["next"][0].finish_reason == "length"
    assert [check_healthy(result, count) for count in range(2)] == [1, 2]
    with pytest.raises(EngineError, match="3 steps failed in a row"):
        check_healthy(result, 2)


def test_requests_that_fail_by_themselves_never_end_the_core(model: TinyModel) -> None:
    """A client whose requests cannot go on, one in each step, must not be able to restart everybody's engine."""
    core = make_core(model)
    count = 0
    for number in range(5):
        core.add(make_request(f"bad {number}", [3, 4, 5]))
        result = StepResult()
        core._fail(f"bad {number}", InvalidRequestError("its grammar ends here", param="response_format"), result)
        count = check_healthy(result, count)
        assert (result.failures[0].error, result.failures[0].param) == ("InvalidRequestError", "response_format")
    assert count == 0
    assert not core.has_work


def test_a_beam_search_that_leaves_the_numbers_ends_alone(model: TinyModel) -> None:
    core = make_core(model)
    core.add(make_request("beams", [3, 4, 5], num_beams=3, length_penalty=1e308))
    core.add(make_request("other", [6, 7, 8]))
    failed: list[str] = []
    finished: list[str] = []
    while core.has_work:
        result = core.step()
        check_healthy(result, 0)
        failed += [failure.request_id for failure in result.failures]
        finished += [output.request_id for output in result.outputs if output.finish_reason]
    assert (failed, finished) == (["beams"], ["other"])
    stats = core.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_forced_end_at_the_length_limit_equals_transformers(model: TinyModel, num_beams: int) -> None:
    prompt = prompts_with_shared_prefixes(1, seed=11)[0]
    with torch.inference_mode():
        reference = model.reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=9,
            do_sample=False,
            num_beams=num_beams,
            eos_token_id=2,
            forced_eos_token_id=2,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
    request = make_request(
        "r", prompt, max_tokens=9, eos=(2,), logit_bias=None, num_beams=num_beams, forced_eos_token_id=2
    )
    [outcome] = run(make_core(model), [request])["r"]
    assert outcome.token_ids == reference
    assert outcome.token_ids[-1] == 2
    assert outcome.finish_reason == "stop"
