"""Each family equals transformers, whatever the inputs beside it; what would change the result is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.native.models.base import Encoder
from tests.native.paging import random_tokens
from tests.native.tiny_encoders import FAMILIES, VOCAB, TinyEncoder, save_tiny_encoder

LENGTHS = [1, 1, 3, 5, 6, 6, 17, 40, 64]


def run(encoder: Encoder, inputs: list[list[int]]) -> list[torch.Tensor]:
    lengths = [len(ids) for ids in inputs]
    with torch.inference_mode():
        hidden = encoder.forward(torch.tensor([token for ids in inputs for token in ids]), lengths)
    return list(hidden.split(lengths))


def inputs_of(lengths: list[int]) -> list[list[int]]:
    return [[5 + token % 90 for token in random_tokens(length, seed=length)] for length in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_transformers(tmp_path: Path, family: str) -> None:
    tiny = save_tiny_encoder(tmp_path, family)
    encoder = tiny.load()
    inputs = inputs_of(LENGTHS)
    for ids, ours in zip(inputs, run(encoder, inputs), strict=True):
        torch.testing.assert_close(ours, tiny.hidden(ids), atol=1e-5, rtol=1e-5)
    expected = sum(
        parameter.numel() * 4 for name, parameter in tiny.reference.named_parameters() if "pooler" not in name
    )
    assert encoder.num_bytes == expected


def test_neighbours_change_nothing(tmp_path: Path) -> None:
    encoder = save_tiny_encoder(tmp_path).load()
    inputs = inputs_of(LENGTHS)
    together = run(encoder, inputs)
    for ids, ours in zip(inputs, together, strict=True):
        torch.testing.assert_close(run(encoder, [ids])[0], ours, atol=1e-6, rtol=1e-6)


def test_a_checkpoint_of_another_task_is_read_without_its_head(tmp_path: Path) -> None:
    """Prefixed names, a head that is of no use here, and the spellings of the first checkpoints."""
    torch.manual_seed(1)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = BertForMaskedLM(BertConfig(vocab_size=len(VOCAB), max_position_embeddings=16, **shape)).eval()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(file).items()
    }
    save_file({**old, "bert.embeddings.position_ids": torch.arange(16)[None]}, file)
    ids = [2, 7, 9, 3]
    with torch.inference_mode():
        expected = model.bert(torch.tensor([ids])).last_hidden_state[0]
    ours = run(TinyEncoder(tmp_path, model).load(), [ids])[0]
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True}, "is_decoder"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
    ],
)
def test_what_would_change_the_result_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    tiny = save_tiny_encoder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UnsupportedModelError, match=message):
        tiny.load()


def test_missing_and_left_over_tensors_are_named(tmp_path: Path) -> None:
    tiny = save_tiny_encoder(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    save_file({name: tensor for name, tensor in whole.items() if "layer.1.output.dense.bias" not in name}, file)
    with pytest.raises(SourceError, match=r"lack encoder\.layer\.1\.output\.dense\.bias"):
        tiny.load()
    save_file({**whole, "encoder.relative.weight": torch.ones(2)}, file)
    with pytest.raises(SourceError, match=r"hold encoder\.relative\.weight"):
        tiny.load()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_is_near(tmp_path: Path, quantization: str) -> None:
    tiny = save_tiny_encoder(tmp_path, intermediate_size=64)
    encoder = tiny.load(quantization=quantization)
    ids = inputs_of([20])[0]
    similarity = torch.nn.functional.cosine_similarity(run(encoder, [ids])[0], tiny.hidden(ids))
    assert float(similarity.min()) > (0.99 if quantization == "int8" else 0.9)
