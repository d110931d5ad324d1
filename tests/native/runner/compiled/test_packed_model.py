"""A model as the library is told of it: its sizes, what is shared, and that its memory was planned to the byte."""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.checkpoint import Checkpoint
from llm_inference.native.loader import fill_slots, read_config
from llm_inference.native.runner.compiled.packed_model import PackedModel
from llm_inference.native.runner.compiled.packing import FLOAT_BITS, pack, packed_bytes, round_weight
from llm_inference.native.runner.llama_weights import LlamaWeights
from tests.native.tiny_models import save_tiny


def packed(directory: Path, bits: int = 8, cache_bits: int = 8) -> PackedModel:
    spec = ModelSpec.from_directory(directory)
    weights = LlamaWeights(spec)
    fill_slots(weights, Checkpoint(directory))
    return PackedModel(spec, read_config(directory), weights, bits, cache_bits)


def bytes_at(address: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).copy())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_ends_are_in_8_bits_and_shared_where_they_are_tied(bits: int, tied: bool, tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, tie_word_embeddings=tied, intermediate_size=100)
    holder = packed(tmp_path, bits)
    model = holder.model
    assert (model.embedding.panels == model.head.panels) is tied
    assert model.embedding.bits == model.head.bits == 8
    assert model.layers[1].down.bits == bits
    assert (model.layers[0].gate_up.outs, model.layers[0].down.ins) == (2 * 112, 100)
    expected = pack(round_weight(tiny.reference.get_output_embeddings().weight.detach(), 8))
    assert torch.equal(bytes_at(model.head.panels, expected.nbytes), expected.flatten())


@pytest.mark.parametrize("tied", [True, False])
def test_all_of_it_is_in_float32_or_nothing(tied: bool, tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, tie_word_embeddings=tied, intermediate_size=100)
    holder = packed(tmp_path, FLOAT_BITS, FLOAT_BITS)
    model = holder.model
    assert (model.embedding.panels == model.head.panels) is tied
    assert model.cache_bits == model.embedding.bits == model.head.bits == model.layers[1].down.bits == FLOAT_BITS
    weight = tiny.reference.get_output_embeddings().weight.detach()
    rows = torch.zeros(128, 64)
    rows[: len(weight)] = weight
    stored = bytes_at(model.head.panels, rows.nbytes).view(torch.float32).view(4, 64, 32)
    for token in (0, 31, 32, 100):
        assert torch.equal(stored[token // 32, :, token % 32], weight[token])
    down = tiny.reference.model.layers[1].mlp.down_proj.weight.detach()
    stored = bytes_at(model.layers[1].down.panels, down.nbytes).view(torch.float32).view(2, 100, 32)
    assert torch.equal(stored.transpose(1, 2).reshape(64, 100), down)


def test_windows_and_sizes(tmp_path: Path) -> None:
    save_tiny(tmp_path, "qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1)
    holder = packed(tmp_path)
    model = holder.model
    assert [model.layers[index].window for index in range(model.num_layers)] == [0, 6]
    assert (model.hidden_size, model.inner_size, model.head_dim, model.vocab_size) == (64, 96, 16, 101)
    assert (model.num_heads, model.num_kv_heads) == (4, 2)
    assert model.layers[0].qkv.bias
    assert not model.layers[0].down.bias
    matrices = [(128, 64), (64, 64), (192, 64), (64, 96)] * 2 + [(101, 64)] * 2
    vectors = 4 * (5 * 64 + 2 * 128 + 8)
    assert holder.num_bytes == sum(packed_bytes(*shape, 8) for shape in matrices) + vectors


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        ({"hidden_act": "mish"}, UnsupportedModelError, "'mish' is not known; known are silu"),
        ({"head_dim": 18}, UnsupportedModelError, "multiple of 4 up to 256 dimensions, and 'head_dim' is 18"),
    ],
)
def test_refusals(overrides: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, **overrides)
    with pytest.raises(kind, match=message):
        packed(tmp_path)


def test_an_odd_head_dim(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    spec = dataclasses.replace(ModelSpec.from_directory(tmp_path), head_dim=15)
    with pytest.raises(SourceError, match="'head_dim' must be even"):
        PackedModel(spec, read_config(tmp_path), LlamaWeights(spec), 8, 8)
