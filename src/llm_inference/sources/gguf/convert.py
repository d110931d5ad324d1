"""One GGUF file → one directory in the hub's layout.

Knows nothing of where the file came from, of caches, or of who uses the result.
"""

from __future__ import annotations

import json
from pathlib import Path

from llm_inference.sources.cache import require_free_space
from llm_inference.sources.gguf.config import hf_config, hf_generation_config
from llm_inference.sources.gguf.reader import open_gguf
from llm_inference.sources.gguf.tensors import converted_bytes, write_safetensors
from llm_inference.sources.gguf.tokenizer import write_tokenizer


def convert(path: Path, directory: Path, *, progress: bool) -> None:
    """Write config, tokenizer and weights of `path` into the empty `directory`.

    Raises `SourceError` for a damaged file or a full disk, `UnsupportedModelError` for what the native engine has no
    words for; both before the weights are written.
    """
    from tqdm import tqdm

    model = open_gguf(path)
    config = hf_config(model)
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", hf_generation_config(model))
    write_tokenizer(model, directory)
    require_free_space(directory, converted_bytes(model), f"converting {path.name}")
    total = sum(info.num_bytes for info in model.tensors.values())
    with tqdm(
        total=total, unit="B", unit_scale=True, desc=f"Converting {path.name}", disable=None if progress else True
    ) as bar:
        write_safetensors(
            model,
            directory,
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            permuted=model.architecture == "llama",
            on_bytes=bar.update,
        )


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
