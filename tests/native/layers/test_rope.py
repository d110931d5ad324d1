"""Rotation in reordered pairs equals the textbook's; scalings equal transformers' frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import RopeSpec
from llm_inference.native.layers.rope import RotaryEmbedding, interleave, inverse_frequencies, rotate_, rotated

CPU = torch.device("cpu")


def test_pairs_side_by_side() -> None:
    rows = torch.arange(12).view(12, 1)  # two heads of 6
    assert interleave(rows, 6).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert interleave(torch.arange(4), 4).tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_by_the_matrix(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads = torch.randn(5, 3, 8).to(dtype)
    rope = RotaryEmbedding(8, RopeSpec(100.0), original_context=64, device=CPU)
    positions = torch.tensor([0, 1, 7, 40, 3])
    turned = torch.stack([interleave(token.reshape(24), 8).view(3, 8) for token in heads])
    rotation = rope.rotation(positions)
    of_real_numbers = rotated(turned, torch.view_as_real(rotation))
    rotate_(turned, rotation)
    torch.testing.assert_close(of_real_numbers, turned)
    for token, position in enumerate(positions.tolist()):
        for pair in range(4):
            angle = torch.tensor(position * 100.0 ** (-2 * pair / 8))
            a, b = heads[token, :, pair].float(), heads[token, :, pair + 4].float()
            first, second = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(turned[token, :, 2 * pair].float(), first, atol=tolerance, rtol=tolerance)
            torch.testing.assert_close(turned[token, :, 2 * pair + 1].float(), second, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 40.0, "beta_fast": 20, "beta_slow": 2, "truncate": False},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 1.2, "mscale_all_dim": 0.8},
    ],
)
def test_frequencies_equal_transformers(scaling: dict[str, Any], head_dim: int) -> None:
    original = 2048
    config = LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        max_position_embeddings=original * 4,
        rope_parameters=scaling | {"rope_theta": 10000.0, "original_max_position_embeddings": original},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, CPU)
    rope = RopeSpec(
        theta=10000.0,
        rope_type=scaling["rope_type"],
        factor=scaling["factor"],
        original_max_position_embeddings=original,
        parameters={key: value for key, value in scaling.items() if key not in ("rope_type", "factor")},
    )
    frequencies, scale = inverse_frequencies(head_dim, rope, original * 4)
    torch.testing.assert_close(frequencies, expected, rtol=1e-5, atol=1e-9)
    assert scale == pytest.approx(factor)


def test_unknown_types_and_wrong_parameters() -> None:
    with pytest.raises(UnsupportedModelError, match="'longrope' is not known"):
        inverse_frequencies(16, RopeSpec(1e4, "longrope"), 64)
    with pytest.raises(UnsupportedModelError, match="a part of each head"):
        inverse_frequencies(16, RopeSpec(1e4, partial_rotary_factor=0.5), 64)
    with pytest.raises(SourceError, match="'low_freq_factor' must be a positive number, not None"):
        inverse_frequencies(16, RopeSpec(1e4, "llama3", 2.0), 64)
    with pytest.raises(SourceError, match="'beta_fast'"):
        inverse_frequencies(16, RopeSpec(1e4, "yarn", 2.0, parameters={"beta_fast": "many"}), 64)
