"""What is measured: something that was started, answers workloads, and is stopped. See the files beside this one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from llm_inference.tools.compare.measured import Outcome
from llm_inference.tools.compare.workloads import Request, Workload


class Target(Protocol):
    """One started contender, for as long as it is open."""

    async def warm_up(self, requests: Sequence[Request]) -> None:
        """Raises `EngineError` when they fail."""
        ...

    async def run(self, workload: Workload, limit_s: float) -> Outcome:
        """Whatever still runs after `limit_s` is cut off. Raises `EngineError` when nothing could be measured."""
        ...


@dataclass(frozen=True, slots=True)
class Started:
    """`pids` are the roots of the process trees whose memory counts; none where they are elsewhere."""

    target: Target
    pids: tuple[int, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


#: Starts a contender when it is entered, and stops it, its processes too, when it is left. Raises `StartupError`.
Opening = AbstractAsyncContextManager[Started]
