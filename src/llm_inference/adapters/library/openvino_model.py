"""What OpenVINO GenAI is given to load: an IR directory as it is, or a GGUF file in the precision wanted."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from llm_inference.adapters.library.gguf_weights import WeightType, rewrite, weight_type
from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError, UnsupportedModelError
from llm_inference.sources.cache import ModelCache, default_cache_dir
from llm_inference.sources.resolve import resolve

logger = logging.getLogger(__name__)

IR_FILE = "openvino_model.xml"
#: Part of the key of what is cached.
_VERSION = 1
#: Types of weights that the library reads to the exact value.
_EXACT = ("F16", "Q8_0", "Q4_0")
_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")


@dataclass(frozen=True, slots=True)
class OpenVINOModel:
    """`path` is for the library, `directory` has tokenizer and config. `weights` is the type, such as "Q8_0"."""

    path: Path
    directory: Path
    weights: str


def find_model(model: ModelConfig, *, progress: bool = True) -> OpenVINOModel:
    """Resolve `model:` and bring its weights to the precision asked for. Raises `StartupError`."""
    wanted = model.resolved_quantization
    if wanted not in (None, "int8", "int4"):
        raise UnsupportedModelError(
            f"quantization: {wanted!r} is not known to the engine 'openvino'; it has int8 and int4"
        )
    place = Path(model.model).expanduser()
    if (place / IR_FILE).is_file():
        if wanted is not None:
            raise ConfigError(
                f"quantization: {place} is an OpenVINO model, whose weights are what the export made them; leave it out"
            )
        return OpenVINOModel(place.resolve(), place.resolve(), "exported")
    resolved = resolve(model.model, progress=progress, trust_remote_code=model.trust_remote_code)
    if resolved.gguf is None:
        raise UnsupportedModelError(
            f"model: the engine 'openvino' reads GGUF files and OpenVINO models (a directory with {IR_FILE}); "
            f"{model.model} is neither. Give one of the two, such as what `optimum-cli export openvino` writes"
        )
    path, weights = _weights(resolved.gguf, wanted)
    return OpenVINOModel(path, resolved.directory, weights)


def target_type(found: str, wanted: str | None) -> WeightType | None:
    """The type to write weights of type `found` anew in; None: they are right as they are."""
    if wanted == "int8":
        return None if found == "Q8_0" else "Q8_0"
    if wanted == "int4":
        return None if found in _FOUR_BITS else "Q4_0"
    return None if found in _EXACT else "F16"


def _weights(gguf: Path, wanted: str | None) -> tuple[Path, str]:
    found = weight_type(gguf)
    target = target_type(found, wanted)
    if target is None:
        return gguf, found
    status = gguf.stat()
    identity = f"{_VERSION}\0{gguf.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0{target}"
    key = f"{gguf.stem}-{target}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def build(directory: Path) -> None:
        logger.info("writing the weights of %s anew, %s as %s", gguf.name, found, target)
        rewrite(gguf, directory / "model.gguf", target)

    return ModelCache(default_cache_dir()).entry("openvino", key, build) / "model.gguf", target
