"""One replica's engine as its owner has it: planned, started, stopped, and planned anew for the next time."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.held import HeldState
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.gateway.admin.fleet import EngineState
from llm_inference.serve.desk import Post
from llm_inference.serve.warm_up import warm_models
from llm_inference.telemetry.metrics.machine import Machine


class Kept:
    """`model`: as the engine is told it; `entry`: as the configuration says it. `lock`: one change at a time."""

    def __init__(
        self,
        replica: str,
        model: ModelConfig,
        entry: ModelConfig,
        run_dir: Path,
        num_siblings: int,
        context: EngineContext,
    ) -> None:
        self.replica = replica
        self.model = model
        self.entry = entry
        self.run_dir = run_dir
        self.lock = asyncio.Lock()
        self.loading: asyncio.Task[None] | None = None
        self.restarting = False  # whether `loading` began with an end of what ran
        self.given_up = False  # whether `loading` has been told to end
        self.state: HeldState = "unloaded"
        self.reason = ""
        self.barred = False
        self.retry_at = 0.0  # after a failed load: monotonic time before which requests do not have it tried again
        self._since = time.monotonic()
        self._num_siblings = num_siblings
        self._context = dataclasses.replace(context, run_dir=run_dir, num_siblings=num_siblings)
        self._engine: Engine | None = None
        self._planned = False
        self._running = False
        self._stopping: asyncio.Task[None] | None = None

    @property
    def key(self) -> str:
        return str(self.run_dir)

    @property
    def engine(self) -> Engine:
        """As it was planned last."""
        assert self._engine is not None, "plan() comes first"
        return self._engine

    @property
    def running(self) -> bool:
        return self._running and self._stopping is None

    def become(self, state: HeldState, reason: str = "", *, barred: bool = False) -> None:
        if state != self.state:
            self._since = time.monotonic()
        self.state, self.reason, self.barred = state, reason, barred

    async def plan(self) -> None:
        """In a thread: downloads take a while, and signals must be heard. Raises `StartupError`."""
        self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        make = engine_factory(self.model.engine)
        self._engine = await asyncio.to_thread(make, self.model, self._context)
        self._planned = True

    async def start(self, *, warm: bool) -> None:
        """Raises `StartupError`; nothing is left running then. What was planned long ago is planned anew."""
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
        if not self._planned:
            await self.plan()
        self._planned = False
        self._running = True
        try:
            await self.engine.start()
            if warm:
                await warm_models((self.entry,), {self.replica: self.engine}, lambda: None)
        except BaseException:
            await self.stop(0)
            raise

    def put_off(self) -> None:
        """It is not started now: by then another plan may be the right one."""
        self._planned = False

    async def stop(self, grace_s: float) -> None:
        """To its end, also when who asks is cancelled; who else asks meanwhile waits for the same end."""
        if not self._running:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s), name=f"stop {self.replica}")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        try:
            await self.engine.stop(grace_s)
        finally:
            self._running, self._stopping = False, None

    def post(self) -> Post:
        return Post(
            self.replica, self.key, self._num_siblings, self.state, self.reason, self.barred, lazy=self.entry.lazy
        )

    def report(self, machine: Machine) -> EngineState:
        pid = getattr(self._engine, "pid", None) if self._running else None
        seen = machine.processes({"it": pid}).get("it", {}) if isinstance(pid, int) else {}
        resident = seen.get("process_resident_memory_bytes")
        return EngineState(
            self.state,
            self.reason,
            round(time.monotonic() - self._since, 3),
            self.entry.lazy,
            self.entry.memory,
            None if resident is None else int(resident),
        )
