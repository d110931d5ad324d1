"""The native engine without HTTP: its core in this process, driven step by step through the workloads.

Run as a module it is the process of one contender (`python -m llm_inference.tools.compare.offline JOB.json`), with the
messages of `scripts/loop.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from llm_inference.config.load import load_config
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import SamplingParams
from llm_inference.errors import EngineError
from llm_inference.native.plan import make_plan
from llm_inference.native.request import CoreRequest
from llm_inference.tools.compare.scripts.loop import News, run_job
from llm_inference.version import __version__


class NativePipeline:
    """A `Pipeline` of `scripts/loop.py`. Raises `StartupError` when the model cannot be had or does not fit."""

    def __init__(self, model: ModelConfig, *, progress: bool = False) -> None:
        plan = make_plan(model, progress=progress)
        plan.require_generation()
        for name, value in plan.core_env.items():
            os.environ.setdefault(name, value)  # read when torch is loaded, which is why that comes after
        from llm_inference.native.build import build_core

        self._core, self.report = build_core(plan.setup)

    def versions(self) -> dict[str, str]:
        return {"llm-inference": __version__, "runner": self.report.runner, "precision": self.report.precision}

    def add(self, key: int, token_ids: list[int], max_tokens: int) -> None:
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            ignore_eos=True,
        )
        self._core.add(CoreRequest(request_id=str(key), prompt_token_ids=tuple(token_ids), sampling=sampling))

    def step(self) -> list[News]:
        result = self._core.step()
        if result.failures:
            raise EngineError(result.failures[0].message)
        return [
            (int(output.request_id), len(output.tokens), output.finish_reason is not None, None)
            for output in result.outputs
        ]

    def abort(self, key: int) -> None:
        self._core.abort(str(key))


def main(argv: list[str]) -> None:
    job: dict[str, Any] = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    model = load_config(job["setup"]["config"]).config.models[0]
    run_job(NativePipeline(model), job)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
