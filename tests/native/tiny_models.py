"""Small random models made by transformers, and its logits for them: the reference that ours must equal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from llm_inference.model_spec import ModelSpec
from llm_inference.native.loader import load_model
from llm_inference.native.models.base import CausalLM

CPU = torch.device("cpu")
VOCAB_SIZE = 101

_FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


@dataclass(frozen=True)
class TinyModel:
    """A model directory, and the model in it as transformers runs it."""

    directory: Path
    reference: PreTrainedModel

    def load(self, **options: Any) -> CausalLM:
        options = {"dtype": torch.float32, "device": CPU} | options
        return load_model(self.directory, ModelSpec.from_directory(self.directory), **options)

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """`[tokens, vocab]` float32."""
        return self.reference(torch.tensor([token_ids])).logits[0].float()


def save_tiny(directory: Path, family: str = "llama", **overrides: Any) -> TinyModel:
    """Two layers, 4 query heads over 2 key-value heads of 16; every weight random, biases and norms too."""
    config_class, model_class = _FAMILIES[family]
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "mistral":
        settings["sliding_window"] = None
    torch.manual_seed(0)
    model = model_class(config_class(**settings | overrides)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            else:  # large enough that attention is not uniform and a mistake shows
                parameter.copy_(torch.randn_like(parameter) * (0.5 if name.endswith("bias") else 0.12))
    model.save_pretrained(directory)
    return TinyModel(directory, reload(directory))


def reload(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
