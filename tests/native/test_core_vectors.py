"""Vectors of decoders: through the scheduler and the paged cache, equal to transformers' hidden states."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from llm_inference.native.core import EngineCore
from llm_inference.native.request import CoreRequest, PoolingParams
from tests.native.cores import make_core, make_request, run
from tests.native.paging import random_tokens
from tests.native.tiny_models import TinyModel, save_tiny

MODES = ("mean", "last", "cls")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def wants(request_id: str, prompt: list[int], mode: str = "mean", **params: Any) -> CoreRequest:
    pooling = PoolingParams(mode=mode, **params)  # type: ignore[arg-type]
    return msgspec.structs.replace(make_request(request_id, prompt, max_tokens=0), pooling=pooling)


def vectors(core: EngineCore, requests: list[CoreRequest]) -> dict[str, np.ndarray]:
    for request in requests:
        core.add(request)
    found: dict[str, np.ndarray] = {}
    while core.has_work:
        result = core.step()
        assert not result.failures
        for output in result.outputs:
            assert output.finish_reason == "length"
            assert output.vector is not None
            assert output.request_id not in found
            found[output.request_id] = np.frombuffer(output.vector, "<f4")
    stats = core.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    assert core._pooler._sums == {}
    return found


@torch.inference_mode()
def expected(model: TinyModel, prompt: list[int], mode: str, *, dimensions: int | None = None) -> np.ndarray:
    hidden = model.reference.model(torch.tensor([prompt])).last_hidden_state[0]
    vector = {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}[mode][:dimensions]
    return (vector / vector.norm()).numpy()


@pytest.mark.parametrize("limit", [16, 64])
def test_equal_to_transformers_whole_and_in_chunks(model: TinyModel, limit: int) -> None:
    prompts = [random_tokens(length, seed=length) for length in (1, 2, 16, 17, 33, 90)]
    requests = [wants(f"{mode} {i}", prompt, mode) for i, prompt in enumerate(prompts) for mode in MODES]
    found = vectors(make_core(model, max_num_batched_tokens=limit), requests)
    for i, prompt in enumerate(prompts):
        for mode in MODES:
            np.testing.assert_allclose(found[f"{mode} {i}"], expected(model, prompt, mode), atol=1e-5)


def test_cut_to_dimensions_and_left_as_long_as_they_are(model: TinyModel) -> None:
    prompt = random_tokens(20, seed=1)
    requests = [wants("cut", prompt, dimensions=8), wants("raw", prompt, normalize=False)]
    found = vectors(make_core(model), requests)
    np.testing.assert_allclose(found["cut"], expected(model, prompt, "mean", dimensions=8), atol=1e-5)
    assert math.isclose(float(np.linalg.norm(found["cut"])), 1.0, abs_tol=1e-6)
    raw = found["raw"]
    assert abs(float(np.linalg.norm(raw)) - 1.0) > 0.1
    np.testing.assert_allclose(raw / np.linalg.norm(raw), expected(model, prompt, "mean"), atol=1e-5)


def test_only_the_last_token_may_come_behind_a_cached_prefix(model: TinyModel) -> None:
    stem = random_tokens(40, seed=2)
    core = make_core(model)
    run(core, [make_request("warm", stem, max_tokens=1)])
    for mode in MODES:
        prompt = [*stem, *random_tokens(5, seed=ord(mode[0]))]
        before = core.stats().prefix_cache_hits
        found = vectors(core, [wants(mode, prompt, mode)])
        np.testing.assert_allclose(found[mode], expected(model, prompt, mode), atol=1e-5)
        assert (core.stats().prefix_cache_hits > before) == (mode == "last")


def test_beside_running_streams_and_through_preemption(model: TinyModel) -> None:
    """A pool too small for all: streams keep their tokens, vectors their values, every stream moves at every step."""
    prompts = [random_tokens(30 + i, seed=i) for i in range(6)]
    alone = run(make_core(model), [make_request(f"chat {i}", prompt[:9]) for i, prompt in enumerate(prompts)])
    core = make_core(model, num_blocks=30, max_num_batched_tokens=24, max_num_seqs=8)
    for i, prompt in enumerate(prompts):
        core.add(make_request(f"chat {i}", prompt[:9], max_tokens=12))
        core.add(wants(f"mean {i}", prompt))
    tokens: dict[str, list[int]] = {}
    found: dict[str, np.ndarray] = {}
    while core.has_work:
        result = core.step()
        assert not result.failures
        for output in result.outputs:
            if output.vector is not None:
                found[output.request_id] = np.frombuffer(output.vector, "<f4")
            else:
                tokens.setdefault(output.request_id, []).extend(token.token_id for token in output.tokens)
    assert tokens == {name: choices[0].token_ids for name, choices in alone.items()}
    for i, prompt in enumerate(prompts):
        np.testing.assert_allclose(found[f"mean {i}"], expected(model, prompt, "mean"), atol=1e-5)


def test_a_stream_gets_a_token_at_every_step_while_long_inputs_are_embedded(model: TinyModel) -> None:
    core = make_core(model, max_num_batched_tokens=20)
    core.add(make_request("stream", [3, 4, 5], max_tokens=30))
    core.step()
    for i in range(4):
        core.add(wants(str(i), random_tokens(100, seed=i)))
    for _ in range(20):
        assert "stream" in {output.request_id for output in core.step().outputs}


def test_an_aborted_input_leaves_nothing_behind(model: TinyModel) -> None:
    core = make_core(model, max_num_batched_tokens=16)
    core.add(wants("gone", random_tokens(60, seed=1)))
    core.step()
    core.abort("gone")
    assert core._pooler._sums == {}
    assert not core.has_work
    assert vectors(core, [wants("next", [3, 4, 5])]).keys() == {"next"}


def test_a_vector_that_is_no_number_fails_its_request_alone(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(model)
    execute = core._runner.execute_with_hidden

    def broken(model_input: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logits, hidden = execute(model_input)
        return logits, torch.cat([torch.full_like(hidden[:1], math.nan), hidden[1:]])

    monkeypatch.setattr(core._runner, "execute_with_hidden", broken)
    core.add(wants("bad", [3, 4, 5]))
    core.add(wants("good", [6, 7, 8]))
    result = core.step()
    assert [failure.request_id for failure in result.failures] == ["bad"]
    assert "not a number" in result.failures[0].message
    assert [output.request_id for output in result.outputs] == ["good"]
    assert not core.has_work
