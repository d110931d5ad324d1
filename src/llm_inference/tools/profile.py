"""`llm-inference profile`: a workload through the native engine in this process, under the profiler.

As in a service a request is prepared, computed and turned into text, and as one ends the next comes in; but all of it
on one thread, so that the parts add up to the whole. Imports torch only when it runs.
"""

from __future__ import annotations

import gzip
import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.types import GenerateRequest, Prompt, SamplingParams
from llm_inference.errors import ConfigError, EngineError, InvalidRequestError
from llm_inference.native.answer import Answer
from llm_inference.native.plan import NativePlan, make_plan
from llm_inference.native.prepare import Preparer
from llm_inference.telemetry.profiling.figures import Profile, ProfileOrder, ProfileResult, StepFigures, TraceFigures
from llm_inference.telemetry.profiling.trace import read_trace

if TYPE_CHECKING:
    from llm_inference.native.core import Core
    from llm_inference.native.step_profiler import StepProfiler

#: Words of a prompt that no prefix cache knows: the number of the request comes first.
_WORDS = (
    "the",
    "river",
    "runs",
    "past",
    "old",
    "stone",
    "houses",
    "and",
    "slow",
    "green",
    "fields",
    "to",
    "the",
    "sea",
)
_NO_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`num_requests` are in the engine at a time; as one ends the next begins. Prompts have about `prompt_words` words,
    answers `max_tokens` tokens, but for the first ones, which are shorter so that not all end at once."""

    num_requests: int = 8
    prompt_words: int = 100
    max_tokens: int = 32
    temperature: float = 0.8
    top_p: float = 0.95

    def prompt(self, number: int) -> Prompt:
        words = itertools.islice(itertools.cycle(_WORDS), number % len(_WORDS), None)
        return " ".join((str(number), *itertools.islice(words, self.prompt_words)))

    def sampling(self, number: int) -> SamplingParams:
        """`number` counts from 1."""
        share = min(number / self.num_requests, 1.0)
        return SamplingParams(
            max_tokens=max(round(self.max_tokens * share), 1),
            temperature=self.temperature,
            top_p=self.top_p,
            ignore_eos=True,
        )


def run(model: ModelConfig, workload: Workload, order: ProfileOrder) -> ProfileResult:
    """Load the model and profile it. Raises `StartupError`, `RequestError`, `EngineError`."""
    if model.engine not in ("auto", "native"):
        raise ConfigError(f"engine: only the native engine can be profiled, and {model.engine} has tools of its own")
    plan = make_plan(model, progress=False)
    if plan.setup.kind != "decoder":
        raise InvalidRequestError(
            f"the model {model.name!r} is an encoder; only models that generate are profiled here"
        )
    for name, value in plan.core_env.items():
        os.environ.setdefault(name, value)  # read when torch is loaded, which is why that comes after
    from llm_inference.native.build import build_core

    core, report = build_core(msgspec.structs.replace(plan.setup, count_nodes=True))
    return profile_core(core, plan.make_preparer(), workload, order, plan=plan, runner=report.runner)


def profile_core(
    core: Core,
    preparer: Preparer,
    workload: Workload,
    order: ProfileOrder,
    *,
    runner: str,
    plan: NativePlan | None = None,
) -> ProfileResult:
    """The same with what there is already. The core is given back idle."""
    from llm_inference.native.step_profiler import StepProfiler

    order = msgspec.structs.replace(order, max_s=min(order.max_s, _NO_LIMIT_S))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        max_num_seqs = plan.setup.max_num_seqs if plan is not None else None
        profiler = StepProfiler(core, order, file, runner=runner, max_num_seqs=max_num_seqs)
        _Driver(core, preparer, workload, profiler).run()
        steps = profiler.stop()
        content = file.read_bytes() if file.exists() else b""
    figures = read_trace(content) if content else None
    if figures is None:
        steps, figures = StepFigures(runner=steps.runner, num_steps=0), TraceFigures(wall_s=0.0, seconds={})
    return ProfileResult(profile=Profile(trace=figures, steps=steps), trace_gz=gzip.compress(content, 5))


class _Driver:
    """Keeps `num_requests` in the core until the profiler has seen enough."""

    def __init__(self, core: Core, preparer: Preparer, workload: Workload, profiler: StepProfiler) -> None:
        self._core, self._preparer, self._workload, self._profiler = core, preparer, workload, profiler
        self._numbers = itertools.count(1)
        self._answers: dict[str, Answer] = {}

    def run(self) -> None:
        profiler, stages = self._profiler, self._profiler.stages
        for _ in range(self._workload.num_requests):
            self._add()
        profiler.start()
        try:
            while not profiler.done:
                while len(self._answers) < self._workload.num_requests:
                    with stages("tokenizer"):
                        self._add()
                result = self._core.step()
                if result.failures:
                    raise EngineError(result.failures[0].message)
                with stages("detokenizer"):
                    for output in result.outputs:
                        answer = self._answers[output.request_id]
                        answer.take([output])
                        if answer.finished:
                            del self._answers[output.request_id]
                profiler.after_step()
        finally:
            for request_id in self._answers:
                self._core.abort(request_id)

    def _add(self) -> None:
        number = next(self._numbers)
        request = GenerateRequest(
            request_id=f"profile-{number}",
            model="",
            prompt=self._workload.prompt(number),
            sampling=self._workload.sampling(number),
        )
        prepared = self._preparer.prepare(request, request.request_id)
        self._answers[request.request_id] = Answer(request, prepared, self._preparer.tokenizer)
        self._core.add(prepared.core_request)
