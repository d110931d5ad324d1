"""The Llama family against transformers: every option that changes a logit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.models.llama import layer_windows
from tests.native.family_options import OPTIONS
from tests.native.paging import random_tokens, torch_pager
from tests.native.tiny_models import save_tiny

TOLERANCE = 1e-4


@pytest.mark.parametrize("name", OPTIONS)
def test_logits_equal_transformers_in_prefill_and_decode(name: str, tmp_path: Path) -> None:
    family, overrides = OPTIONS[name]
    tiny = save_tiny(tmp_path, family, **overrides)
    pager = torch_pager(tiny.load())
    token_ids = random_tokens(37, seed=1)
    expected = tiny.logits(token_ids)
    whole = pager.run(token_ids)
    torch.testing.assert_close(whole, expected, atol=TOLERANCE, rtol=TOLERANCE)
    # A chunk, then one token at a time: attention reads keys that earlier steps stored.
    stepwise = pager.run(token_ids, 10, *range(11, 37))
    torch.testing.assert_close(stepwise, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_half_precision_stays_close(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    token_ids = random_tokens(30, seed=2)
    logits = torch_pager(tiny.load(dtype=torch.bfloat16)).run(token_ids, 12, 13, 14)
    assert logits.dtype == torch.float32
    expected = tiny.logits(token_ids)
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()


def rounded_int8(weight: torch.Tensor) -> torch.Tensor:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


def rounded_int4(weight: torch.Tensor) -> torch.Tensor:
    groups = weight.unflatten(1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    return (low + ((groups - low) / step).round() * step).flatten(1)


@pytest.mark.parametrize(("quantization", "rounded"), [("int8", rounded_int8), ("int4", rounded_int4)])
def test_quantized_model_equals_transformers_with_rounded_weights(
    quantization: str, rounded: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    tiny = save_tiny(tmp_path, "qwen2")
    quantized = tiny.load(quantization=quantization)
    assert quantized.num_bytes < tiny.load().num_bytes
    with torch.no_grad():
        for name, parameter in tiny.reference.named_parameters():
            if name.endswith("_proj.weight"):  # not the embedding, the head, norms and biases
                parameter.copy_(rounded(parameter))
    token_ids = random_tokens(30, seed=3)
    logits = torch_pager(quantized).run(token_ids, 12, 13)
    torch.testing.assert_close(logits, tiny.logits(token_ids), atol=TOLERANCE, rtol=TOLERANCE)


def test_unknown_activation_and_rope_are_refused(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path / "a", hidden_act="mish")
    with pytest.raises(UnsupportedModelError, match="'mish' is not known"):
        tiny.load()
    tiny = save_tiny(tmp_path / "b", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(UnsupportedModelError, match="'dynamic'"):
        tiny.load()


def test_windows_by_layer(tmp_path: Path) -> None:
    save_tiny(tmp_path, "qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1)
    spec = ModelSpec.from_directory(tmp_path)
    assert layer_windows(spec, {"max_window_layers": 1}) == (None, 6)
    assert layer_windows(spec, {"layer_types": ["sliding_attention", "full_attention"]}) == (6, None)
    with pytest.raises(SourceError, match="must list 2 layers"):
        layer_windows(spec, {"layer_types": ["full_attention"]})
    with pytest.raises(SourceError, match="max_window_layers"):
        layer_windows(spec, {"max_window_layers": "one"})
