from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.native import plan as planning
from llm_inference.native.factory import create
from llm_inference.native.plan import NativePlan


def written(directory: Path, run_dir: Path, **context: int) -> NativePlan:
    run_dir.mkdir()
    model = ModelConfig.model_validate({"model": str(directory), "device": "cpu", "gpu_memory_utilization": 0.8})
    create(model, EngineContext(run_dir=run_dir, progress=False, **context))  # type: ignore[arg-type]
    return msgspec.json.decode((run_dir / "plan.json").read_bytes(), type=NativePlan)


def test_siblings_share_the_machine(default_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "available_cpus", lambda: 8)
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: 64 * 2**30)
    alone = written(default_model_dir, tmp_path / "alone").setup
    shared = written(default_model_dir, tmp_path / "shared", num_siblings=3).setup
    assert (alone.num_threads, shared.num_threads) == (8, 2)
    assert shared.gpu_memory_utilization == pytest.approx(alone.gpu_memory_utilization / 3)
    many = written(default_model_dir, tmp_path / "many", num_siblings=16).setup
    assert many.num_threads == 1
