"""What the gateway knows of the engines' keeper: what may be asked of it, and how it says how they are.

Engines are loaded and stopped elsewhere (`serve/keeper.py`); with several workers that is another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from llm_inference.engine.held import HeldState

Action = Literal["load", "unload", "restart", "drain"]


class ReloadReport(msgspec.Struct, frozen=True):
    """Replicas by id. `needs_restart`: sections of the file that differ and were left as they are."""

    started: list[str]
    stopped: list[str]
    kept: list[str]
    needs_restart: list[str]


class EngineState(msgspec.Struct, frozen=True):
    """Of one replica's engine. `since_s`: how long it has been in this state. `memory_bytes`: what it counts for in
    the budget; `resident_bytes`: what its process holds now. null: not said, or not known."""

    state: HeldState
    reason: str
    since_s: float
    lazy: bool
    memory_bytes: int | None = None
    resident_bytes: int | None = None


class ReplicaLoad(msgspec.Struct, frozen=True):
    """One gateway worker's requests for one replica. `idle_s`: since the last one was over."""

    in_flight: int
    outstanding_tokens: int
    num_requests: int
    idle_s: float


class WorkerReport(msgspec.Struct, frozen=True):
    """One gateway process. `num_waiting`: in its queue at the door. `replicas`: by id."""

    worker: int
    in_flight: int
    num_waiting: int
    replicas: dict[str, ReplicaLoad]


class FleetReport(msgspec.Struct, frozen=True):
    """`engines`: by replica id."""

    engines: dict[str, EngineState]
    workers: list[WorkerReport]


class Fleet(Protocol):
    """The keeper of the engines, wherever it is."""

    async def reload(self) -> ReloadReport:
        """Raises `StartupError` for a configuration that cannot be had; the old one then goes on everywhere."""
        ...

    async def act(self, action: Action, replicas: Sequence[str]) -> None:
        """To the end. Raises `InvalidRequestError` for an id that is unknown, `NotReadyError` for a failed load."""
        ...

    async def report(self) -> FleetReport: ...
