"""A GPU, or the end of the test."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from llm_inference.model_spec import ModelSpec
from llm_inference.native.runner.torch_build import TorchParts, choose_parts, load_runner
from llm_inference.native.runner.torch_runner import TorchRunner
from llm_inference.native.setup import CoreSetup

ATTENTIONS = ("sdpa", "flash_attn", "flashinfer")


@pytest.fixture(scope="session")
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA device")
    return torch.device("cuda")


@pytest.fixture(params=ATTENTIONS)
def attention(request: pytest.FixtureRequest, device: torch.device) -> str:
    """Each attention that is installed; those that are compared with come first."""
    name: str = request.param
    if name != "sdpa" and find_spec(name) is None:
        pytest.skip(f"the package of attention {name} is not installed")
    return name


MakeRunner = Callable[..., tuple[TorchRunner, TorchParts]]


@pytest.fixture
def make_runner(device: torch.device) -> MakeRunner:
    """`make_runner(directory, dtype, attention, **setup)`: a runner on the GPU, without a cache."""

    def make(directory: Any, dtype: torch.dtype, attention: str, **options: Any) -> tuple[TorchRunner, TorchParts]:
        spec = ModelSpec.from_directory(directory)
        usual: dict[str, Any] = {
            "model_dir": str(directory),
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 512,
            "num_valid_tokens": spec.vocab_size,
            "block_size": None,
            "attention": attention,
            "cuda_graphs": False,
        }
        setup = CoreSetup(**usual | options)
        parts = choose_parts(setup, spec, dtype, device)
        return load_runner(parts, setup, spec, dtype, device), parts

    return make
