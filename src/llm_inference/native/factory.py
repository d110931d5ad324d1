"""`engine: native`: from a model's configuration to an engine that is planned and not yet started. Torch-free."""

from __future__ import annotations

import msgspec

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.native.engine import NativeEngine
from llm_inference.native.plan import NativePlan, make_plan


def create(model: ModelConfig, context: EngineContext) -> NativeEngine:
    """Raises `StartupError` for everything that can be known before weights are read.

    Whoever owns the core plans; further gateway workers read that plan, so that all agree on limits and sizes.
    """
    file = context.run_dir / "plan.json"
    if context.owns_core:
        plan = make_plan(
            _share_of(model, context.num_siblings),
            progress=context.progress,
            log_level=context.log_level,
            log_format=context.log_format,
        )
        threads = plan.setup.num_threads
        if threads is not None and context.num_siblings > 1:
            own = max(1, threads // context.num_siblings)
            plan = msgspec.structs.replace(plan, setup=msgspec.structs.replace(plan.setup, num_threads=own))
        file.write_bytes(msgspec.json.encode(plan))
    else:
        plan = msgspec.json.decode(file.read_bytes(), type=NativePlan)
    return NativeEngine(plan, context.run_dir, owns_core=context.owns_core)


def _share_of(model: ModelConfig, num_siblings: int) -> ModelConfig:
    """For one of several engines that take their memory from the same machine."""
    share = model.gpu_memory_utilization / num_siblings
    return model if num_siblings == 1 else model.model_copy(update={"gpu_memory_utilization": share})
