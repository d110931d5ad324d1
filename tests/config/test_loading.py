from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llm_inference.config.schema import ServerConfig


def config(*models: dict[str, Any], **loading: Any) -> ServerConfig:
    named = [{"name": f"m{number}", "model": "any", **model} for number, model in enumerate(models)]
    return ServerConfig.model_validate({"models": named, "loading": loading})


def test_by_default_everything_is_loaded_and_nothing_is_bounded() -> None:
    made = ServerConfig()
    assert made.loading.memory_budget is None
    assert (made.models[0].lazy, made.models[0].idle_unload_s, made.models[0].memory) == (False, None, None)


def test_what_can_be_kept() -> None:
    made = config({"lazy": True, "memory": "3GiB", "idle_unload_s": 60}, {"memory": "1GiB"}, memory_budget="4GiB")
    assert made.loading.memory_budget == 4 * 2**30
    assert made.models[0].memory == 3 * 2**30
    config({"url": "http://192.0.2.1"}, {"memory": "1GiB"}, memory_budget="1GiB")


@pytest.mark.parametrize(
    ("models", "loading", "words"),
    [
        ([{"idle_unload_s": 60}], {}, "needs `lazy: true`"),
        ([{"lazy": True, "url": "http://192.0.2.1"}], {}, "runs already"),
        ([{"lazy": True}], {"memory_budget": "1GiB"}, '"m0" has none'),
        ([{"lazy": True, "memory": "2GiB"}], {"memory_budget": "1GiB"}, '"m0" alone is more'),
        ([{"memory": "2GiB"}, {"lazy": True, "memory": "2GiB"}], {"memory_budget": "3GiB"}, "the largest"),
        ([{"memory": "2GiB", "replicas": 2}], {"memory_budget": "3GiB"}, "without `lazy` take"),
        ([{}], {"max_wait_s": 0}, "greater than 0"),
    ],
)
def test_what_cannot(models: list[dict[str, Any]], loading: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        config(*models, **loading)
