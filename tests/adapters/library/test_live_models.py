"""What the libraries are given to load, for real: an OpenVINO model's directory, weights that ONNX's builder rounds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from llm_inference.adapters.library import onnx, openvino
from llm_inference.adapters.library.interpreter import Library
from llm_inference.adapters.library.openvino_model import IR_FILE
from llm_inference.errors import ConfigError
from llm_inference.serve import open_engine
from llm_inference.sources.resolve import DEFAULT_SOURCE, resolve
from tests.adapters.library.test_live import PROMPTS, answer, config, ids, text

pytestmark = [pytest.mark.live_engine, pytest.mark.timeout(900)]

#: Of the library itself: a GGUF file that it has read, written down as its own kind of model beside it.
_SAVE = (
    "import sys, openvino_genai as g; s = g.SchedulerConfig(); s.num_kv_blocks = 8; "
    "g.ContinuousBatchingPipeline(sys.argv[1], s, 'CPU', {'enable_save_ov_model': True})"
)


def python_of(library: Library) -> Path:
    """Skips where the library is not installed."""
    try:
        python = library.python(None)
        library.version(python)
    except ConfigError as error:
        pytest.skip(error.message)
    return python


async def test_a_directory_with_an_openvino_model(tmp_path: Path) -> None:
    python = python_of(openvino.LIBRARY)
    resolved = resolve(DEFAULT_SOURCE, progress=False)
    assert resolved.gguf is not None
    shutil.copy(resolved.gguf, tmp_path / "model.gguf")
    subprocess.run([str(python), "-c", _SAVE, str(tmp_path / "model.gguf")], check=True, timeout=300)
    (tmp_path / "model.gguf").unlink()
    assert (tmp_path / IR_FILE).is_file()
    for file in resolved.directory.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, tmp_path)
    with pytest.raises(ConfigError, match="quantization"):
        async with open_engine(config("openvino", model=str(tmp_path), quantization="int8"), progress=False):
            pass
    async with open_engine(config("openvino", model=str(tmp_path)), progress=False) as engine:
        assert engine.info.precision.startswith("exported weights, computed in float32")
        assert engine.info.max_model_len == 512
        deltas = await answer(engine)
        assert "Paris" in text(deltas)
        assert deltas[-1].finish_reason == "stop"


async def test_onnx_with_weights_in_8_bits() -> None:
    """Not what native says in float32 to the last token: weights are rounded, and activations before each product."""
    python_of(onnx.LIBRARY)
    async with open_engine(config("native"), progress=False) as native:
        ours = [ids(await answer(native, prompt, max_tokens=12)) for prompt in PROMPTS]
    asked = config("onnx", dtype="auto", quantization="int8")
    async with open_engine(asked, progress=False) as engine:
        assert engine.info.precision == "int8 weights, int8 activations in products"
        theirs = [ids(await answer(engine, prompt, max_tokens=12)) for prompt in PROMPTS]
        said = [text(await answer(engine, prompt, max_tokens=12)) for prompt in PROMPTS]
    agreed = sum(a == b for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=False))
    print(f"\n{said}\nonnx int8: {agreed} of {sum(map(len, ours))} greedy tokens as native's in float32")
    assert agreed >= 0.6 * sum(map(len, ours))
