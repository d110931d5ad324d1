"""Library engines over the stub worker."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.library.engine import LibraryEngine
from llm_inference.adapters.library.onnx import PROFILE
from llm_inference.adapters.library.plan import LibraryPlan, worker_argv
from llm_inference.engine.supervisor import RestartPolicy
from llm_inference.engine.types import Delta, GenerateRequest, GenerationDefaults, ModelInfo, Prompt, SamplingParams

WORKER = str(Path(__file__).with_name("stub_worker.py"))
ARGV = worker_argv(Path(sys.executable), WORKER)
#: Of the byte tokenizer.
EOS = 1
MAX_MODEL_LEN = 100

MakeEngine = Callable[..., LibraryEngine]


def make_engine(run_dir: Path, prompts: PromptSide, *, owns_worker: bool = True, **habits: Any) -> LibraryEngine:
    plan = LibraryPlan(
        info=ModelInfo(name="m", max_model_len=MAX_MODEL_LEN, engine="stub", max_num_seqs=8),
        defaults=GenerationDefaults(),
        eos_token_ids=(EOS,),
        argv=ARGV,
        setup={"stub": habits},
    )
    policy = RestartPolicy(max_restarts=2, backoff_s=0.02)
    return LibraryEngine(
        PROFILE, plan, run_dir, prompts, lambda request, sampling: None, owns_worker=owns_worker, policy=policy
    )


def work(prompt: Prompt = "abcdef", **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id="r", model="m", prompt=prompt, sampling=SamplingParams(**sampling), add_special_tokens=False
    )


async def answer(engine: LibraryEngine, request: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(request)]


def text(deltas: list[Delta], index: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.index == index)
