"""Names that Kubernetes, Docker or nginx would refuse are refused with the flag's name."""

from __future__ import annotations

from typing import Any

import pytest

from llm_inference.deploy.choices import Choices
from llm_inference.errors import ConfigError


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"name": "Llama_3"}, "--name: 'Llama_3' is no name for Kubernetes"),
        ({"name": "a" * 41}, "--name"),
        ({"name": "a\n"}, "--name"),
        ({"namespace": "-a"}, "--namespace"),
        ({"image": "a b"}, "--image: 'a b' is no image such as"),
        ({"image": "x:1\nRUN id"}, "--image"),
        ({"hostname": "llm.example.org; return 200"}, "--hostname"),
        ({"hostname": "$host"}, "--hostname"),
        ({"storage_class": "a b"}, "--storage-class"),
        ({"cpus": 0}, "--cpus: must be above 0"),
        ({"load_time_s": -1.0}, "--load-time-s"),
        ({"replicas": 3, "max_replicas": 2}, "--max-replicas is 2, below the 3 of --replicas"),
    ],
)
def test_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Choices(**said)


@pytest.mark.parametrize(
    "image",
    ["llm", "llm:1", "registry.example.org/a/llm:0.1.0", "registry.example.org:5000/llm", "llm@sha256:" + "0" * 64],
)
def test_images(image: str) -> None:
    assert Choices(image=image).image == image
