"""What a front can refuse of the torch runner's options, and what it says so far."""

from __future__ import annotations

import logging
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.attention.choice import InstalledPackages
from llm_inference.native.torch_options import check_torch_options


def no_packages(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def check(directory: Path, *, runner: Any = "torch", device: str = "cuda", version: Any = None, **options: Any) -> None:
    check_torch_options(
        ModelConfig.model_validate({"model": str(directory), **options}),
        ModelSpec.from_directory(directory),
        runner=runner,
        device=device,
        precision="auto" if device != "cpu" else "float32",
        max_num_seqs=8,
        installed=InstalledPackages(version or no_packages),
    )


def test_what_it_says(default_model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    check(default_model_dir, version=lambda name: "2.8.3" if name == "flash-attn" else no_packages(name))
    assert "attention: flash_attn so far, because flash-attn 2.8.3 is installed" in caplog.text
    assert "CUDA graphs: True so far" in caplog.text
    caplog.clear()
    check(default_model_dir, device="cpu")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": "flash_attn"}, "attention: flash_attn cannot be had: the package flash-attn"),
        ({"attention": "flashinfer", "device": "cpu"}, "runs on NVIDIA GPUs, and the device is cpu"),
        ({"cuda_graphs": True}, "cuda_graphs: true cannot be had: with attention sdpa"),
        ({"cuda_graphs": True, "device": "cpu"}, "need an NVIDIA GPU"),
        ({"runner": "openvino", "device": "cpu", "compile": True}, "compile: .* openvino computes here; set `runner"),
        (
            {"runner": "compiled", "device": "cpu", "attention": "sdpa"},
            "attention: it is an option of the runner torch",
        ),
        ({"runner": "openvino", "device": "cpu", "cuda_graphs": False}, "cuda_graphs: it is an option of"),
    ],
)
def test_refusals(default_model_dir: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(default_model_dir, **arguments)


def test_what_is_fine(default_model_dir: Path) -> None:
    check(default_model_dir, device="cpu", compile=True, attention="sdpa", cuda_graphs=False)
    check(default_model_dir, runner="openvino", device="cpu")
