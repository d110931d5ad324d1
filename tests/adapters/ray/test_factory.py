from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.ray import factory
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.errors import ConfigError


def model(**more: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "m", "engine": "ray", **more})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"url": "http://10.0.0.5:8000", "model": "m"}, "keep one"),
        ({"replicas": 2}, "say `ray.replicas: 2`"),
        ({"ray": {"engine": "ray"}}, "the engine in each replica"),
        ({"ray": {"engine": "nonesuch"}}, "'nonesuch' is unknown"),
    ],
)
def test_refusals(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_factory("ray")(model(**keys), EngineContext(run_dir=tmp_path))


def test_without_ray_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"llm-inference\[ray\]"):
        engine_factory("ray")(model(), EngineContext(run_dir=tmp_path))


def test_a_model_moves_to_ray_with_its_engine_and_replicas() -> None:
    moved = ModelConfig.model_validate(
        {"name": "m", "engine": "vllm", "replicas": 3, "ray": {"num_cpus": 2.0}}
    ).on_ray()
    assert (moved.engine, moved.ray.engine, moved.replicas, moved.ray.replicas) == ("ray", "vllm", 1, 3)
    assert moved.ray.num_cpus == 2.0
    assert moved.on_ray() is moved
    remote = ModelConfig.model_validate({"name": "m", "engine": "openai", "url": "http://10.0.0.5:8000"})
    assert remote.on_ray() is remote
