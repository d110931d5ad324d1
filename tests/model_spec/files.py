"""Small model directories for the tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def write_config(directory: Path, **changes: Any) -> Path:
    """config.json of a tiny Llama with `changes`; a value of `...` removes the key."""
    content = {key: value for key, value in (LLAMA | changes).items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(content))
    return directory


def write_tokenizer(directory: Path) -> None:
    """The smallest file that is a tokenizer."""
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))


def write_weights(directory: Path, names: dict[str, list[str]]) -> None:
    """Files of 4 × 4 float32 tensors: file name → tensor names."""
    for file, tensors in names.items():
        save_file({name: np.ones((4, 4), np.float32) for name in tensors}, str(directory / file))


def write_index(directory: Path, weight_map: dict[str, Any]) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_model(directory: Path) -> Path:
    """A directory that passes `verify`."""
    write_config(directory)
    write_tokenizer(directory)
    write_weights(directory, {"model.safetensors": ["a", "b"]})
    return directory
