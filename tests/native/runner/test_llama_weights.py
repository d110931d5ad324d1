"""The tensors of a checkpoint are taken by name, and the two ends are one matrix where one serves both."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from llm_inference.errors import SourceError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.checkpoint import Checkpoint
from llm_inference.native.loader import fill_slots
from llm_inference.native.runner.llama_weights import EMBEDDING, HEAD, LlamaWeights
from tests.native.tiny_models import save_tiny


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_every_tensor_is_taken_once(family: str, tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, family)
    weights = LlamaWeights(ModelSpec.from_directory(tmp_path))
    fill_slots(weights, Checkpoint(tmp_path), progress=False)
    reference = dict(tiny.reference.named_parameters())
    assert set(weights.slots()) >= set(reference)
    for name, parameter in reference.items():
        assert torch.equal(weights.take(name), parameter)
        assert not weights.has(name)


def test_the_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    spec = ModelSpec.from_directory(tmp_path)
    table, other = torch.ones(101, 64), torch.zeros(101, 64)

    def ends(**tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = LlamaWeights(spec)
        slots = weights.slots()
        for name, tensor in tensors.items():
            slots[{"table": EMBEDDING, "head": HEAD}[name]].store(tensor)
        return weights.take_ends()

    assert [end is table for end in ends(table=table)] == [True, True]
    assert [end is table for end in ends(head=table)] == [True, True]
    assert [end is table for end in ends(table=table, head=table.clone())] == [True, True]
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert [end is table for end in ends(table=table, head=other)] == [True, False]
    assert "two different matrices" in caplog.text
    with pytest.raises(SourceError, match="lack both the embedding and the output head"):
        ends()
