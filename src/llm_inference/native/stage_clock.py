"""Where the time of a start goes, stage by stage."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


class StageClock:
    """Seconds of stages that follow each other without a gap."""

    def __init__(self, already_s: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        """`already_s`: the first stage began that long ago."""
        self._now = now
        self._began = self._last = now() - already_s
        self.stages: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """What has passed since the last stage ended was `stage`; the same name may come again."""
        now = self._now()
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        """`4.8 s: imports 0.9, weights 0.6`."""
        stages = ", ".join(f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in self.stages.items())
        return f"{self._last - self._began:.1f} s: {stages}"


def process_age_s(stat: Path = Path("/proc/self/stat")) -> float:
    """How long ago this process began; 0 where the system does not say."""
    try:
        began_ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK"), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
