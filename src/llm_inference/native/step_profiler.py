"""Profiles a core's steps with torch.profiler: some pass, some warm it up, some count. Imports torch.

    before ── num_wait ── num_warmup ── num_steps ── trace file, figures
              not seen    thrown away   recorded

One thread: that which steps the core. Operators that a runner's own library computes are not seen by torch; of such a
runner the trace has ranges alone, and its own counters come as `nodes`, where it keeps them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from llm_inference.engine.base import EngineStats
from llm_inference.native.core import Core
from llm_inference.telemetry.profiling.figures import ProfileOrder, StepFigures
from llm_inference.telemetry.profiling.trace import RANGE
from llm_inference.telemetry.stages import Stages, quiet


@runtime_checkable
class Observed(Protocol):
    """Cores that tell the stages of their steps."""

    def observe(self, stages: Stages) -> None: ...


@runtime_checkable
class CountsNodes(Protocol):
    """Cores whose runner's library clocks its own nodes."""

    def node_seconds(self) -> Mapping[str, float]:
        """Of all steps so far, by part (`profiling.figures`); empty where it does not."""
        ...


class StepProfiler:
    """From `start` to `stop`. `after_step` is called after every step of the core in between."""

    def __init__(
        self,
        core: Core,
        order: ProfileOrder,
        trace_file: Path,
        *,
        runner: str,
        max_num_seqs: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core, self._order, self._now = core, order, now
        self._runner, self._max_num_seqs = runner, max_num_seqs
        self._trace_file = trace_file
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the library writes lines of its own into the log
        activities = [ProfilerActivity.CPU]
        # Not `is_available`: a core on the CPU would begin to use a GPU that it does not need.
        self._on_gpu = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=order.num_wait, warmup=order.num_warmup, active=order.num_steps, repeat=1),
            on_trace_ready=self._write,
        )
        self._num_seen = 0
        self._deadline = 0.0
        self._before: EngineStats | None = None
        self._after: EngineStats | None = None
        self._nodes_before: Mapping[str, float] = {}
        self._nodes_after: Mapping[str, float] = {}

    @property
    def done(self) -> bool:
        """Nothing more is to come: all steps are seen, or the time is up."""
        whole = self._order.num_wait + self._order.num_warmup + self._order.num_steps
        return self._num_seen >= whole or self._now() >= self._deadline

    @property
    def stages(self) -> Stages:
        """For work around the steps, such as sending what they brought."""
        return _ranges

    def start(self) -> None:
        self._trace_file.unlink(missing_ok=True)  # an earlier one that nobody has read
        self._profiler.start()
        if isinstance(self._core, Observed):
            self._core.observe(_ranges)
        self._deadline = self._now() + self._order.max_s  # the first start in a process takes a second
        self._begin_at(0)

    def after_step(self) -> None:
        self._num_seen += 1
        if self._before is not None and self._num_seen <= self._first + self._order.num_steps:
            self._after = self._core.stats()
        self._profiler.step()
        if self._num_seen == self._first + self._order.num_steps:
            self._nodes_after = self._nodes()
        self._begin_at(self._num_seen)

    def stop(self) -> StepFigures:
        """End it, early or not. Without a recorded step there is no trace, and `num_steps` is 0."""
        try:
            self._profiler.stop()
        finally:
            if isinstance(self._core, Observed):
                self._core.observe(quiet)
        before, after = self._before, self._after
        nodes = self._nodes_after or self._nodes()
        if before is None or after is None:
            return StepFigures(runner=self._runner, num_steps=0)
        tokens, sequences = _grown(before, after, "step_tokens"), _grown(before, after, "step_sequences")
        return StepFigures(
            runner=self._runner,
            num_steps=after.num_steps - before.num_steps,
            num_tokens=tokens,
            num_sequences=sequences,
            max_num_seqs=self._max_num_seqs,
            num_preemptions=after.num_preemptions - before.num_preemptions,
            num_waiting=after.num_waiting,
            kv_cache_usage=after.kv_cache_usage,
            peak_memory_bytes=_peak_resident_bytes(),
            peak_device_bytes=torch.cuda.max_memory_allocated() if self._on_gpu else None,
            nodes={
                part: own - self._nodes_before.get(part, 0.0)
                for part, own in nodes.items()
                if own > self._nodes_before.get(part, 0.0)
            },
        )

    @property
    def _first(self) -> int:
        return self._order.num_wait + self._order.num_warmup

    def _begin_at(self, num_seen: int) -> None:
        if num_seen == self._first:
            self._before, self._nodes_before = self._core.stats(), self._nodes()
            _forget_peaks(self._on_gpu)

    def _nodes(self) -> Mapping[str, float]:
        return dict(self._core.node_seconds()) if isinstance(self._core, CountsNodes) else {}

    def _write(self, profiler: profile) -> None:
        previous = os.umask(0o077)
        try:
            profiler.export_chrome_trace(str(self._trace_file))
        finally:
            os.umask(previous)


def _ranges(name: str) -> AbstractContextManager[object]:
    return record_function(RANGE + name)


def _grown(before: EngineStats, after: EngineStats, histogram: str) -> int | None:
    first, last = getattr(before, histogram), getattr(after, histogram)
    return None if first is None or last is None else int(last.total - first.total)


def _forget_peaks(on_gpu: bool) -> None:
    """Let the peaks begin anew. Where the kernel does not, they are of the process's whole life."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()


def _peak_resident_bytes() -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split() for line in lines if line.startswith("VmHWM:")), None)
    return int(found[1]) * 1024 if found is not None else None
