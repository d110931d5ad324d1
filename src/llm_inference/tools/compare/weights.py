"""The same weights in another GGUF type, for engines whose precision is that of their file. Made once, then cached."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llm_inference.adapters.library.gguf_weights import WeightType, rewrite, weight_type
from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError
from llm_inference.sources.cache import ModelCache, default_cache_dir
from llm_inference.sources.resolve import resolve


def with_gguf(model: ModelConfig, wanted: WeightType | None) -> ModelConfig:
    """`model` with a GGUF file of `wanted` weights in place of its own; as it is where nothing is wanted.

    Its name, which clients say, stays. Raises `ConfigError` where the model comes in no GGUF file.
    """
    if wanted is None:
        return model
    gguf = resolve(model.model, progress=False).gguf
    if gguf is None:
        raise ConfigError(f"bench.gguf: {model.model} is no GGUF file; leave it out")
    if weight_type(gguf) == wanted:
        return model.model_copy(update={"model": str(gguf)})
    status = gguf.stat()
    identity = f"{gguf.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{wanted}"
    key = f"{gguf.stem}-{wanted}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def build(folder: Path) -> None:
        rewrite(gguf, folder / f"{gguf.stem}-{wanted}.gguf", wanted)

    folder = ModelCache(default_cache_dir()).entry("gguf", key, build)
    return model.model_copy(update={"model": str(folder / f"{gguf.stem}-{wanted}.gguf")})
