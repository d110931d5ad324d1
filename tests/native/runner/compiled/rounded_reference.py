"""transformers' models with the roundings of the compiled runner put into them: what it must compute, but for the order
of sums and for queries and probabilities, which it rounds to 15 bits."""

from __future__ import annotations

import importlib
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from llm_inference.native.runner.compiled.packing import ROUNDED_GROUP, round_weight
from tests.native.tiny_models import TinyModel

BITS = {"int8": 8, "int4": 4}


def rounded_reference(
    directory: Path, quantization: str, monkeypatch: pytest.MonkeyPatch, family: str = "llama"
) -> TinyModel:
    """Of a directory of `save_tiny`. The family's attention stays patched until the end of the test."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        table.copy_(round_weight(table, 8).widen(table.shape[1]))
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                bits = 8 if name == "lm_head" else BITS[quantization]
                if name != "lm_head" or not model.config.tie_word_embeddings:
                    module.weight.copy_(round_weight(module.weight, bits).widen(module.in_features))
                module.register_forward_pre_hook(lambda _, x: (rounded_activations(x[0], ROUNDED_GROUP),))
    modelling: Any = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    exact = modelling.eager_attention_forward

    def attend(
        module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **more: Any
    ) -> Any:
        return exact(module, q, rounded_to_bytes(k), rounded_to_bytes(v), *rest, **more)

    assert isinstance(exact, types.FunctionType)
    monkeypatch.setattr(modelling, "eager_attention_forward", attend)
    return TinyModel(directory, model)


def rounded_activations(x: torch.Tensor, size: int) -> torch.Tensor:
    """Each token in groups of `size` inputs, to whole numbers of -127 … 127 times a scale."""
    padding = -x.shape[-1] % size
    groups = torch.nn.functional.pad(x, (0, padding)).unflatten(-1, (-1, size))
    largest = groups.abs().amax(-1, keepdim=True)
    values = (groups * torch.where(largest > 0, 127 / largest, 0)).round()
    return (values * (largest / 127)).flatten(-2)[..., : x.shape[-1]]


def rounded_to_bytes(x: torch.Tensor) -> torch.Tensor:
    """Each token of a head to whole numbers of 0 … 255 times a scale, and a minimum."""
    least, most = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale = (most - least) / 255
    return ((x - least) * torch.where(scale > 0, 1 / scale, 0)).round() * scale + least
