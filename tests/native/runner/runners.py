"""All runners on a directory, by name, for tests that hold them to the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llm_inference.model_spec import ModelSpec
from llm_inference.native.loader import load_model
from llm_inference.native.runner.base import Runner
from llm_inference.native.runner.compiled.build import obstacle
from llm_inference.native.runner.compiled_runner import CompiledRunner
from llm_inference.native.runner.torch_runner import TorchRunner
from tests.native.paging import Pager

RUNNERS = ("torch", "openvino", "compiled")
BLOCK_SIZE = 32


def make_runner(name: str, directory: Path, **options: Any) -> Runner:
    """`options`: `dtype`, `quantization`, `num_threads` (1)."""
    spec = ModelSpec.from_directory(directory)
    num_threads = options.pop("num_threads", 1)
    options = {"dtype": torch.float32} | options
    if name == "torch":
        return TorchRunner(load_model(directory, spec, device=torch.device("cpu"), **options), block_size=BLOCK_SIZE)
    if name == "compiled":
        reason = obstacle()
        if reason is not None:
            pytest.skip(reason)
        return CompiledRunner(directory, spec, num_threads=num_threads, **({"quantization": None} | options))
    pytest.importorskip("openvino", reason="the package openvino is not installed (extra `cpu`)")
    from llm_inference.native.runner.openvino_runner import OpenVINORunner

    return OpenVINORunner(directory, spec, num_threads=num_threads, **options)


def pager_on(name: str, directory: Path, *, num_blocks: int = 24, seed: int = 0, **options: Any) -> Pager:
    return Pager(make_runner(name, directory, **options), block_size=BLOCK_SIZE, num_blocks=num_blocks, seed=seed)
