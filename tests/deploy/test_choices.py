"""Names that Kubernetes, Docker or nginx would refuse are refused with the flag's name."""

from __future__ import annotations

from typing import Any

import pytest

from llm_inference.deploy.choices import Choices, parse_cpu_set, show_cpu_set
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
        ({"replicas": 0}, "--replicas: must be above 0"),
        ({"replicas": -1, "autoscaler": "keda"}, "--replicas"),
        ({"nodes": 0}, "--nodes: must be above 0"),
        ({"inference_pool": True}, "--inference-pool: say which endpoint picker"),
        ({"picker_image": "a b"}, "--picker-image: 'a b' is no image"),
        ({"config_file": "a b.yaml"}, "name the file with letters"),
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


def test_keda_alone_scales_to_nothing() -> None:
    assert Choices(replicas=0, autoscaler="keda").replicas == 0


@pytest.mark.parametrize(
    ("text", "cpus", "shown"),
    [
        ("2-5", (2, 3, 4, 5), "2-5"),
        ("0", (0,), "0"),
        ("8, 1-2,2", (1, 2, 8), "1-2,8"),
        ("0-1,2", (0, 1, 2), "0-2"),
    ],
)
def test_sets_of_cpus(text: str, cpus: tuple[int, ...], shown: str) -> None:
    assert parse_cpu_set(text) == cpus
    assert show_cpu_set(cpus) == shown
    assert parse_cpu_set(shown) == cpus


@pytest.mark.parametrize("text", ["", "a", "5-2", "1-", "-1", "1;2", "99999"])
def test_no_sets_of_cpus(text: str) -> None:
    with pytest.raises(ConfigError, match="--cpu-set"):
        parse_cpu_set(text)
