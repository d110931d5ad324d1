"""The files under configs/ are what users copy: each must load, and say what it seems to say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_inference.config.load import load_config
from llm_inference.config.schema import ApiConfig, ServerConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = sorted(path.name for path in CONFIGS.iterdir() if path.name != "schema.json")


@pytest.mark.parametrize("name", FILES)
def test_it_loads_without_any_environment(name: str) -> None:
    assert load_config(CONFIGS / name, environ={}).config.models


@pytest.mark.parametrize("name", FILES)
def test_editors_find_the_schema(name: str) -> None:
    text = (CONFIGS / name).read_text()
    marker = '"$schema": "./schema.json"' if name.endswith(".json") else "# yaml-language-server: $schema=./schema.json"
    assert marker in text


def test_the_default_file_says_what_the_defaults_are() -> None:
    assert load_config(CONFIGS / "default.yaml", environ={}).config == ServerConfig()
    text = (CONFIGS / "default.yaml").read_text()
    shown = set(re.findall(r"^  ([a-z_]+):", text, flags=re.MULTILINE))
    assert set(ApiConfig.model_fields) - {"uds"} <= shown


def test_the_designs_example_loads_as_written() -> None:
    config = load_config(CONFIGS / "llama-3-8b-instruct.yaml", environ={}).config
    (model,) = config.models
    assert (config.api.host, config.api.port, config.api.api_prefix) == ("0.0.0.0", 8000, "/v1")
    assert (model.name, model.model) == ("llama-3-8b", "meta-llama/Meta-Llama-3-8B-Instruct")
    assert (model.engine, model.quantization, model.max_model_len) == ("auto", "awq", 8192)
    assert (model.tensor_parallel_size, model.gpu_memory_utilization, model.engine_args) == (1, 0.9, {})


def test_json_and_yaml_of_the_same_model_agree() -> None:
    model = load_config(CONFIGS / "smollm2.json", environ={}).config.models[0]
    assert model.model_copy(update={"max_model_len": None}) == ServerConfig().models[0]


def test_the_gguf_example_takes_its_file_from_the_environment() -> None:
    loaded = load_config(CONFIGS / "gguf.yaml", environ={"MODEL_FILE": "/models/x.gguf"})
    assert loaded.config.models[0].model == "/models/x.gguf"
    assert loaded.provenance["models[0].model"].startswith("environment variable MODEL_FILE via file ")


def test_two_models_are_two() -> None:
    names = [model.name for model in load_config(CONFIGS / "two-models.yaml", environ={}).config.models]
    assert names == ["SmolLM2-135M-Instruct", "qwen2.5-0.5b"]
