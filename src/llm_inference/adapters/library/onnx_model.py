"""What ONNX Runtime GenAI is given to load: a directory of its own builder, made here where there is none yet.

The builder runs in the engine's venv as a second process. What it wrote is cached, by the model's files, the precision
and the library's version.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError, StartupError, UnsupportedModelError
from llm_inference.sources.cache import ModelCache, default_cache_dir
from llm_inference.sources.resolve import resolve

logger = logging.getLogger(__name__)

Precision = Literal["fp32", "int8", "int4"]

CONFIG_FILE = "genai_config.json"
#: Level 4 multiplies in integers, activations in 8 bits by blocks: what the library's speed is known for.
_OPTIONS: dict[str, tuple[str, ...]] = {"fp32": (), "int8": ("accuracy_level=4",), "int4": ("accuracy_level=4",)}
_SAID = {
    "fp32": "float32",
    "int8": "int8 weights, int8 activations in products",
    "int4": "int4 weights, int8 activations in products",
}
_PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class ONNXModel:
    """`path` is for the library, `directory` has tokenizer and config."""

    path: Path
    directory: Path
    precision: str


def precision_of(model: ModelConfig) -> Precision:
    """Raises `StartupError` for what the builder does not make on a CPU."""
    quantization = model.resolved_quantization
    if quantization is None:
        if model.resolved_dtype not in ("auto", "float32"):
            raise ConfigError(
                f"dtype: the engine 'onnx' computes in float32 on a CPU, not in {model.resolved_dtype}; "
                "leave it out, or set `quantization: int4`"
            )
        return "fp32"
    if quantization == "int8" or quantization == "int4":
        return quantization  # type: ignore[return-value]
    raise UnsupportedModelError(
        f"quantization: {quantization!r} is not known to the engine 'onnx'; it has int8 and int4"
    )


def find_model(model: ModelConfig, python: Path, version: str, *, progress: bool = True) -> ONNXModel:
    """Resolve `model:` and convert it where that is not done. Raises `StartupError`."""
    precision = precision_of(model)
    place = Path(model.model).expanduser()
    if (place / CONFIG_FILE).is_file():
        if model.resolved_quantization is not None:
            raise ConfigError(
                f"quantization: {place} is an ONNX model, whose weights are what it was built with; leave it out"
            )
        return ONNXModel(place.resolve(), place.resolve(), "as built")
    directory = resolve(model.model, progress=progress, trust_remote_code=model.trust_remote_code).directory
    key = f"{directory.name[:60]}-{precision}-{_identity(directory, precision, version)}"

    def build(target: Path) -> None:
        convert(python, directory, target, precision)

    path = ModelCache(default_cache_dir()).entry("onnx", key, build)
    return ONNXModel(path, directory, _SAID[precision])


def convert(python: Path, source: Path, target: Path, precision: Precision) -> None:
    """Run the builder. Raises `StartupError` with its last words."""
    command = [str(python), "-I", "-m", "onnxruntime_genai.models.builder", "-m", str(source), "-o", str(target)]
    command += ["-p", precision, "-e", "cpu", "-c", str(target / ".hf")]
    command += ["--extra_options", *_OPTIONS[precision]] if _OPTIONS[precision] else []
    logger.info("building an ONNX model (%s) from %s; this is done once", precision, source.name)
    log = target / ".build.log"
    begun_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603 - the engine's own
        try:
            while True:
                try:
                    status = process.wait(_PROGRESS_S)
                    break
                except subprocess.TimeoutExpired:
                    logger.info("still building, for %.0f s", time.monotonic() - begun_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status:
        words = log.read_text("utf-8", "replace").replace("\r", "\n").strip().splitlines()[-6:]
        raise StartupError(
            f"model: ONNX Runtime GenAI's builder cannot convert {source.name} (exit {status}); its last words:\n  "
            + "\n  ".join(words)
        )
    log.unlink()
    logger.info("built in %.0f s", time.monotonic() - begun_s)


def _identity(directory: Path, precision: str, version: str) -> str:
    """Of the files' names, sizes and times, so that a second start reads nothing of them."""
    parts = [precision, version, *_OPTIONS[precision]]
    for path in sorted(directory.iterdir()):
        status = path.stat()
        parts.append(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
