from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.adapters.library.gguf_weights import weight_type
from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError
from llm_inference.tools.compare import weights
from llm_inference.tools.compare.weights import with_gguf


def test_nothing_wanted() -> None:
    model = ModelConfig()
    assert with_gguf(model, None) is model


def test_another_type_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default_gguf: Path) -> None:
    monkeypatch.setattr(weights, "default_cache_dir", lambda: tmp_path)
    model = ModelConfig(name="m", model=str(default_gguf))
    found = with_gguf(model, "Q8_0")
    path = Path(found.model)
    assert (found.name, weight_type(path)) == ("m", "Q8_0")
    written = path.stat().st_mtime_ns
    assert Path(with_gguf(model, "Q8_0").model).stat().st_mtime_ns == written


def test_no_gguf(default_model_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"bench\.gguf: .* is no GGUF file"):
        with_gguf(ModelConfig(name="m", model=str(default_model_dir)), "Q8_0")
