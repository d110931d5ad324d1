"""Drives an engine's library through the workloads and writes down when each token came. Standard library only.

    python loop.py PIPELINE JOB.json        PIPELINE: a module beside this file with `open_pipeline(setup)`

Runs under the engine's own Python, where the rest of the package is not. A line that begins with "@" is a message in
JSON: ready, then done or failed for each workload; its timelines are in a file of its name. At the end it waits to be
stopped, so that memory can still be read.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from importlib import import_module
from typing import Any, Protocol

#: Tokens of each stream before late prompts come.
STREAM_START = 8

#: (request, tokens that came, whether it is finished, when on `time.perf_counter`; None: now).
News = tuple[int, int, bool, "float | None"]


class Pipeline(Protocol):
    """A library at work. `max_running` bounds what is in it at a time, where it wants fewer than the workload does."""

    def versions(self) -> dict[str, str]: ...

    def add(self, key: int, token_ids: list[int], max_tokens: int) -> None:
        """Greedy, `max_tokens` long whatever the end token says."""
        ...

    def step(self) -> list[News]: ...

    def abort(self, key: int) -> None: ...


class Row:
    """One request's timeline, in seconds from the start of the workload."""

    def __init__(self, index: int, request: dict[str, Any], sent_s: float) -> None:
        self.index = index
        self.num_input = len(request["token_ids"])
        self.max_tokens = int(request["max_tokens"])
        self.sent_s = sent_s
        self.ended_s = sent_s
        self.arrivals: list[tuple[float, int]] = []
        self.finished = False

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.arrivals)

    def plain(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dict__}


class Loop:
    """One workload on one pipeline. Keys of requests are never used twice."""

    def __init__(self, pipeline: Pipeline, first_key: int, limit_s: float) -> None:
        self._pipeline = pipeline
        self._next_key = first_key
        self._limit_s = limit_s
        self._begun_s = time.perf_counter()
        self._running: dict[int, Row] = {}
        self.rows: list[Row] = []

    @property
    def next_key(self) -> int:
        return self._next_key

    def run(self, requests: list[dict[str, Any]], concurrency: int) -> list[Row]:
        """A closed loop: the next request goes in when one has ended."""
        waiting = deque(requests)
        while (waiting or self._running) and not self._over():
            while waiting and len(self._running) < concurrency:
                self._add(waiting.popleft())
            self._step()
        self._abort_all()
        return self.rows

    def run_beside(self, streams: list[dict[str, Any]], late: list[dict[str, Any]]) -> tuple[list[Row], list[Row]]:
        """(the streams', the late prompts' rows): late ones come one after the other while the streams run."""
        for request in streams:
            self._add(request)
        beside = self.rows[:]
        while not self._over() and any(row.num_tokens < STREAM_START for row in beside if not row.finished):
            self._step()
        for request in late:
            if self._over():
                break
            row = self._add(request)
            while not row.finished and not self._over():
                self._step()
        self._abort_all()
        return beside, self.rows[len(beside) :]

    def _add(self, request: dict[str, Any]) -> Row:
        row = Row(len(self.rows), request, self._now_s())
        self.rows.append(row)
        self._running[self._next_key] = row
        self._pipeline.add(self._next_key, request["token_ids"], row.max_tokens)
        self._next_key += 1
        return row

    def _step(self) -> None:
        for key, count, finished, at_s in self._pipeline.step():
            row = self._running.get(key)
            if row is None:
                continue
            now_s = self._now_s() if at_s is None else at_s - self._begun_s
            if count:
                row.arrivals.append((now_s, count))
            if finished:
                row.finished = True
                row.ended_s = now_s
                del self._running[key]

    def _abort_all(self) -> None:
        for key, row in self._running.items():
            row.ended_s = self._now_s()
            self._pipeline.abort(key)
        self._running.clear()

    def _over(self) -> bool:
        return self._now_s() >= self._limit_s

    def _now_s(self) -> float:
        return time.perf_counter() - self._begun_s


def run_workload(pipeline: Pipeline, workload: dict[str, Any], first_key: int) -> tuple[dict[str, Any], int]:
    """(its timelines as plain data, the next key that is free)."""
    loop = Loop(pipeline, first_key, float(workload["limit_s"]))
    if workload["late"]:
        streams, late = loop.run_beside(workload["requests"], workload["late"])
    else:
        streams, late = loop.run(workload["requests"], int(workload["concurrency"])), []
    return {"streams": [row.plain() for row in streams], "late": [row.plain() for row in late]}, loop.next_key


def run_job(pipeline: Pipeline, job: dict[str, Any]) -> None:
    """Warm up, then every workload of the job; messages and files as the module says."""
    key = 0
    warmup = Loop(pipeline, key, 600.0)
    warmup.run(job["warmup"], 2)
    key = warmup.next_key
    say(ready=pipeline.versions())
    for workload in job["workloads"]:
        name = workload["name"]
        try:
            rows, key = run_workload(pipeline, workload, key)
        except Exception as error:  # the library's own, whatever they are
            say(failed=name, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return
        path = os.path.join(job["out"], f"{name}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(rows, file)
        os.replace(path + ".part", path)
        say(done=name)


def say(**message: Any) -> None:
    print("@" + json.dumps(message), flush=True)


def main(argv: list[str]) -> None:
    module, path = argv
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    pipeline: Pipeline = import_module(module).open_pipeline(job["setup"])
    run_job(pipeline, job)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
