"""The front's part of a profile: asks the core, clocks this process meanwhile, reads the trace that the core wrote.

The trace is read by a process of its own, so that neither the core's steps nor this event loop wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from llm_inference.errors import EngineError, OverloadedError
from llm_inference.native.client import CoreClient
from llm_inference.native.wire import ProfileSteps
from llm_inference.telemetry.profiling.figures import (
    FrontFigures,
    Profile,
    ProfileOrder,
    ProfileResult,
    StepFigures,
    TraceFigures,
)
from llm_inference.telemetry.stages import Stages, StageSums, quiet

_Result = TypeVar("_Result")
#: What the core may take beyond the time it was given: to begin, and to write what it has.
_SLACK_S = 60.0
_READ_S = 120.0
#: A larger trace is not read: its reader needs ten times as much memory, on the machine that serves.
MAX_TRACE_BYTES = 256 * 2**20


class FrontProfiler:
    """Of one engine in one gateway process. `stages` are told to nobody while no profile runs."""

    def __init__(self, client: CoreClient, run_dir: Path) -> None:
        self._client = client
        self._run_dir = run_dir
        self.stages: Stages = quiet

    def staged(self, name: str, work: Callable[..., _Result]) -> Callable[..., _Result]:
        """`work`, as a stage, in whatever thread it will run."""
        stages = self.stages
        if stages is quiet:
            return work

        def clocked(*args: object) -> _Result:
            with stages(name):
                return work(*args)

        return clocked

    async def run(self, order: ProfileOrder, max_num_seqs: int) -> ProfileResult:
        """Raises `OverloadedError` while another one runs, `ServiceError` where the core is away or fails."""
        if self.stages is not quiet:
            raise OverloadedError("another profile of this model is running; wait for it", retry_after_s=order.max_s)
        self.stages = sums = StageSums()
        profile_id = uuid.uuid4().hex
        # One name for all of this process: what the core writes after nobody waits for it any more is written over.
        file = self._run_dir / f"profile-{os.getpid()}.json"
        wanted = ProfileSteps(profile_id, order, str(file))
        begun, cpu = time.perf_counter(), time.thread_time()
        try:
            steps = await self._client.profile(wanted, order.max_s + _SLACK_S)
            front = FrontFigures(
                wall_s=max(time.perf_counter() - begun, 1e-9),
                seconds=dict(sums.seconds),
                num_prepared=sums.counts.get("tokenizer", 0),
                loop_cpu_s=time.thread_time() - cpu,
            )
            self.stages = quiet
            trace, packed = await self._read(file) if steps.num_steps else (None, b"")
        finally:
            self.stages = quiet
            for one in (file, Path(f"{file}.gz")):
                one.unlink(missing_ok=True)
        steps = msgspec.structs.replace(steps, max_num_seqs=max_num_seqs)
        if trace is None:
            steps, trace = StepFigures(runner=steps.runner, num_steps=0), TraceFigures(wall_s=0.0, seconds={})
        return ProfileResult(profile=Profile(trace=trace, steps=steps, front=front), trace_gz=packed)

    async def _read(self, file: Path) -> tuple[TraceFigures | None, bytes]:
        _check_size(file)
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "llm_inference.telemetry.profiling.trace",
            str(file),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(child.communicate(), _READ_S)
        except asyncio.TimeoutError as exc:
            raise EngineError(f"the trace could not be read within {_READ_S:.0f} s; profile fewer steps") from exc
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        if child.returncode:
            last = err.decode(errors="replace").strip().splitlines()[-1:]
            raise EngineError(f"the trace could not be read: {' '.join(last) or 'its reader failed'}")
        figures = msgspec.json.decode(out, type=TraceFigures | None)
        return figures, await asyncio.to_thread(Path(f"{file}.gz").read_bytes)


def _check_size(file: Path) -> None:
    size = file.stat().st_size if file.exists() else 0
    if size > MAX_TRACE_BYTES:
        raise EngineError(
            f"the trace has {size / 2**20:.0f} MiB, and more than {MAX_TRACE_BYTES / 2**20:.0f} are not read; "
            "profile fewer steps"
        )
