"""The one profile that a core's process makes at a time, for whichever front asked for it. No torch until then."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from llm_inference.errors import EngineError, OverloadedError
from llm_inference.native.core import Core
from llm_inference.native.wire import Profiled, ProfileSteps
from llm_inference.telemetry.stages import Stages, quiet

if TYPE_CHECKING:
    from llm_inference.native.step_profiler import StepProfiler

logger = logging.getLogger(__name__)


class ProfileTurn:
    """Belongs to the loop that steps `core`. What goes wrong with a profile ends the profile, and nothing else."""

    def __init__(self, core: Core, runner: str) -> None:
        self._core, self._runner = core, runner
        self._front, self._id = b"", ""
        self._profiler: StepProfiler | None = None
        self._failure: Exception | None = None

    @property
    def stages(self) -> Stages:
        return quiet if self._profiler is None else self._profiler.stages

    def begin(self, front: bytes, wanted: ProfileSteps) -> Profiled | None:
        """None: it runs. Otherwise what to tell the front."""
        if self._profiler is not None:
            return _failed(wanted.profile_id, OverloadedError("another profile of this model is running; wait for it"))
        from llm_inference.native.step_profiler import StepProfiler

        try:
            profiler = StepProfiler(self._core, wanted.order, Path(wanted.trace_file), runner=self._runner)
            profiler.start()
        except Exception as exc:
            logger.exception("a profile could not begin")
            return _failed(wanted.profile_id, EngineError(f"the profile could not begin: {exc}"))
        self._front, self._id, self._profiler = front, wanted.profile_id, profiler
        return None

    def after_step(self) -> None:
        if self._profiler is None or self._failure is not None:
            return
        try:
            self._profiler.after_step()
        except Exception as exc:
            self._failure = exc

    def ended(self) -> tuple[bytes, Profiled] | None:
        """Once, when the profile is over: to whom, and what."""
        profiler = self._profiler
        if profiler is None or not (profiler.done or self._failure is not None):
            return None
        failure, self._profiler, self._failure = self._failure, None, None
        try:
            steps = profiler.stop()
            if failure is not None:
                raise failure
            message = Profiled(self._id, steps)
        except Exception as exc:
            logger.exception("a profile failed")
            message = _failed(self._id, EngineError(f"the profile failed: {exc}"))
        return self._front, message


def _failed(profile_id: str, error: OverloadedError | EngineError) -> Profiled:
    return Profiled(profile_id, error=type(error).__name__, message=error.message)
