from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from llm_inference.errors import ContextLengthError, InvalidRequestError
from llm_inference.native.encoder_core import EncoderCore
from llm_inference.native.request import CoreRequest, PoolingParams
from tests.native.cores import make_request
from tests.native.tiny_encoders import TinyEncoder, save_tiny_encoder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEncoder:
    return save_tiny_encoder(tmp_path_factory.mktemp("bert"))


def make(tiny: TinyEncoder, **limits: int) -> EncoderCore:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64} | limits
    return EncoderCore(tiny.load(), **settings)


def an_input(name: str, token_ids: list[int], **params: Any) -> CoreRequest:
    pooling = PoolingParams(**{"mode": "mean", "group": name.split("/")[0], **params})
    return msgspec.structs.replace(make_request(name, token_ids, max_tokens=0), pooling=pooling)


def tokens(length: int) -> list[int]:
    return [5 + (7 * length + 3 * place) % 90 for place in range(length)]


def test_every_vector_equals_the_input_alone_in_transformers(tiny: TinyEncoder) -> None:
    core = make(tiny)
    lengths = [3, 60, 1, 17, 9, 30, 30, 2, 5, 44, 1, 12]
    for i, length in enumerate(lengths):
        for mode in ("mean", "last", "cls"):
            core.add(an_input(f"{mode}/{i}", tokens(length), mode=mode))
    found: dict[str, np.ndarray] = {}
    num_steps = 0
    while core.has_work:
        result = core.step()
        num_steps += 1
        assert not result.failures
        for output in result.outputs:
            assert output.vector is not None
            assert not core.is_live(output.request_id)
            found[output.request_id] = np.frombuffer(output.vector, "<f4")
    assert len(found) == 36
    assert num_steps == core.stats().num_steps >= 3 * sum(lengths) // 64
    for i, length in enumerate(lengths):
        hidden = tiny.hidden(tokens(length))
        for mode, vector in (("mean", hidden.mean(0)), ("last", hidden[-1]), ("cls", hidden[0])):
            np.testing.assert_allclose(found[f"{mode}/{i}"], (vector / vector.norm()).numpy(), atol=1e-5)


def test_what_can_never_run_is_refused(tiny: TinyEncoder) -> None:
    core = make(tiny, max_model_len=10)
    with pytest.raises(ContextLengthError, match="10 tokens, but the input has 11"):
        core.add(an_input("long/0", tokens(11)))
    with pytest.raises(InvalidRequestError, match="an encoder"):
        core.add(make_request("chat", [5, 6]))
    with pytest.raises(InvalidRequestError, match="no tokens"):
        core.add(an_input("empty/0", []))
    core.add(an_input("a/0", tokens(3)))
    with pytest.raises(InvalidRequestError, match="in use"):
        core.add(an_input("a/0", tokens(3)))
    assert core.stats().num_waiting == 1


def test_an_aborted_input_is_not_computed(tiny: TinyEncoder) -> None:
    core = make(tiny)
    core.add(an_input("a/0", tokens(3)))
    core.add(an_input("a/1", tokens(4)))
    core.abort("a/0")
    assert not core.is_live("a/0")
    assert [output.request_id for output in core.step().outputs] == ["a/1"]
    assert core.step().outputs == []


def test_a_failing_step_ends_its_inputs_and_no_other(tiny: TinyEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make(tiny)
    core.add(an_input("doomed/0", tokens(3)))
    core.add(an_input("doomed/1", tokens(4)))

    def explode(token_ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        raise RuntimeError("kernel died")

    with monkeypatch.context() as patch:
        patch.setattr(core._encoder, "forward", explode)
        result = core.step()
    assert sorted(failure.request_id for failure in result.failures) == ["doomed/0", "doomed/1"]
    assert "kernel died" in result.failures[0].message
    assert not core.has_work
    core.add(an_input("next/0", tokens(3)))
    assert [output.request_id for output in core.step().outputs] == ["next/0"]


def test_a_vector_that_is_no_number_fails_alone(tiny: TinyEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make(tiny)
    core.add(an_input("bad/0", tokens(2)))
    core.add(an_input("good/0", tokens(4)))
    forward = core._encoder.forward

    def broken(token_ids: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        hidden = forward(token_ids, lengths)
        hidden[0] = float("inf")
        return hidden

    monkeypatch.setattr(core._encoder, "forward", broken)
    result = core.step()
    assert [failure.request_id for failure in result.failures] == ["bad/0"]
    assert [output.request_id for output in result.outputs] == ["good/0"]
