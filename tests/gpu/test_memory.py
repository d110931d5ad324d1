"""What the plan of a GPU's memory says against what torch counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import OutOfMemoryError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.build import build_core
from llm_inference.native.plan import make_plan, memory_needs
from llm_inference.native.runner.torch_build import choose_parts
from tests.gpu.conftest import MakeRunner

pytestmark = pytest.mark.gpu


def test_the_plan_covers_what_torch_counts(attention: str, device: torch.device, default_model_dir: Path) -> None:
    options = {"model": str(default_model_dir), "device": "cuda", "precision": "float16", "attention": attention}
    model = ModelConfig.model_validate(options | {"kv_cache_memory": "1GiB", "max_num_seqs": 32})
    setup = make_plan(model, progress=False).setup
    spec = ModelSpec.from_directory(default_model_dir)
    parts = choose_parts(setup, spec, torch.float16, device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)["allocated_bytes.all.current"]
    _, report = build_core(setup)
    peak = torch.cuda.memory_stats(device)["allocated_bytes.all.peak"] - before
    needs = memory_needs(spec, "float16", None, setup.max_num_batched_tokens)
    planned = needs.weight_bytes + report.kv_cache_bytes + needs.workspace_bytes + parts.reserved_bytes
    assert report.weight_bytes + report.kv_cache_bytes <= peak <= planned
    assert report.block_size == parts.attention.block_size


def test_a_cache_that_does_not_fit(device: torch.device, default_model_dir: Path, make_runner: MakeRunner) -> None:
    runner, _ = make_runner(default_model_dir, torch.float16, "sdpa")
    _, total = torch.cuda.mem_get_info(device)
    with pytest.raises(OutOfMemoryError, match=r"no memory for a KV cache of .* on cuda"):
        runner.allocate_kv_cache(2 * total // runner.kv_block_bytes)


def test_a_share_that_is_too_small(device: torch.device, default_model_dir: Path) -> None:
    options = {"model": str(default_model_dir), "device": "cuda", "gpu_memory_utilization": 1e-4}
    setup = make_plan(ModelConfig.model_validate(options), progress=False).setup
    with pytest.raises(OutOfMemoryError, match="What would help"):
        build_core(setup)
