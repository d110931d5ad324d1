"""A library in a process of its own, which runs `tools/compare/scripts/loop.py` under the engine's own Python.

The process works through its job by itself; this side waits for what it says, and reads the timelines that it wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from llm_inference.engine.supervisor import Child, ChildSpec, RestartPolicy
from llm_inference.errors import EngineError, StartupError
from llm_inference.tools.bench.timeline import Arrival, Failure, Timeline
from llm_inference.tools.compare.measured import CUT, Outcome
from llm_inference.tools.compare.target import Started
from llm_inference.tools.compare.workloads import Request, Suite, Workload

SCRIPTS = Path(__file__).with_name("scripts")
#: Beyond a workload's own limit: a batch that cannot be interrupted, and the writing of what was measured.
_GRACE_S = 300.0
_NO_RESTART = RestartPolicy(max_restarts=0)


class _Message(msgspec.Struct):
    """A line of the script's that begins with "@"."""

    ready: dict[str, str] | None = None
    done: str | None = None
    failed: str | None = None
    error: str = ""


class _Row(msgspec.Struct):
    index: int
    num_input: int
    max_tokens: int
    sent_s: float
    ended_s: float
    arrivals: list[tuple[float, int]]
    finished: bool


class _Rows(msgspec.Struct):
    streams: list[_Row]
    late: list[_Row]


class LibraryTarget:
    """A `Target`. The workloads of the job are asked for in their order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._messages: asyncio.Queue[_Message] = asyncio.Queue()
        self._failure: str | None = None  # the script has given up: nothing more will come

    def hear(self, line: str) -> None:
        """A line of the script; other lines than messages are its library's and pass by."""
        if line.startswith("@"):
            with contextlib.suppress(msgspec.MsgspecError):
                self._messages.put_nowait(msgspec.json.decode(line[1:], type=_Message))

    def lost(self, reason: str) -> None:
        self._messages.put_nowait(_Message(failed="", error=reason))

    async def ready(self) -> dict[str, str]:
        """Its versions. Raises `StartupError`."""
        message = await self._messages.get()
        if message.ready is None:
            raise StartupError(message.error)
        return message.ready

    async def warm_up(self, requests: Sequence[Request]) -> None:
        """The script has done it before it was ready."""

    async def run(self, workload: Workload, limit_s: float) -> Outcome:
        if self._failure is not None:
            raise EngineError(f"not run, as the workload before failed: {self._failure}")
        try:
            message = await asyncio.wait_for(self._messages.get(), limit_s + _GRACE_S)
        except asyncio.TimeoutError as error:
            raise EngineError(
                f"{workload.name} did not end within {limit_s + _GRACE_S:g} s; it was given up"
            ) from error
        if message.done != workload.name:
            self._failure = message.error or f"the script spoke of {message.done} instead of {workload.name}"
            raise EngineError(self._failure)
        rows = msgspec.json.decode((self._folder / f"{workload.name}.json").read_bytes(), type=_Rows)
        return Outcome(
            timelines=tuple(map(_timeline, rows.streams)), late=tuple(map(_timeline, rows.late)), limit_s=limit_s
        )


def _timeline(row: _Row) -> Timeline:
    return Timeline(
        index=row.index,
        scheduled_s=row.sent_s,
        sent_s=row.sent_s,
        ended_s=row.ended_s,
        arrivals=tuple(Arrival(time_s, count) for time_s, count in row.arrivals),
        counting="usage",
        planned_input_tokens=row.num_input,
        max_tokens=row.max_tokens,
        input_tokens=row.num_input,
        output_tokens=sum(count for _, count in row.arrivals),
        usage_told=True,
        finish_reason="length" if row.finished else None,
        failure=None if row.finished else Failure(CUT, "the time was over"),
    )


@asynccontextmanager
async def open_library(
    name: str, argv: Sequence[str], setup: dict[str, Any], suite: Suite, limit_s: float, folder: Path,
    env: dict[str, str] | None = None, ready_timeout_s: float = 900.0,
) -> AsyncIterator[Started]:  # fmt: skip
    """`argv` and the job's file are the process. Raises `StartupError` with its last words."""
    job = folder / "job.json"
    job.write_bytes(msgspec.json.encode(make_job(setup, suite, limit_s, folder)))
    target = LibraryTarget(folder)
    versions: dict[str, str] = {}

    async def ready() -> None:
        versions.update(await target.ready())

    child = Child(
        ChildSpec(
            name=name,
            argv=(*argv, str(job)),
            ready=ready,
            ready_timeout_s=ready_timeout_s,
            env=env or {},
            on_exit=target.lost,
            on_line=target.hear,
            policy=_NO_RESTART,
        )
    )
    await child.start()
    try:
        yield Started(target, () if child.pid is None else (child.pid,), versions)
    finally:
        await child.stop(grace_s=0.5)


def make_job(setup: dict[str, Any], suite: Suite, limit_s: float, folder: Path) -> dict[str, Any]:
    """What `scripts/loop.py` reads. Raises `StartupError` for prompts whose tokens are not known."""

    def plain(requests: Sequence[Request]) -> list[dict[str, Any]]:
        if any(one.token_ids is None for one in requests):
            raise StartupError("a library is given token ids, and the model's tokenizer is not known; say --tokenizer")
        return [{"token_ids": list(one.token_ids or ()), "max_tokens": one.max_tokens} for one in requests]

    workloads = [
        {
            "name": work.name,
            "requests": plain(work.requests),
            "late": plain(work.late),
            "concurrency": work.concurrency,
            "limit_s": limit_s,
        }
        for work in suite.workloads
    ]
    return {"setup": setup, "warmup": plain(suite.warmup), "workloads": workloads, "out": str(folder)}
