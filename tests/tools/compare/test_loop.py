"""`scripts/loop.py` on a pipeline that can be worked out by hand: a step gives every running request one token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.tools.compare.scripts.loop import Loop, News, run_job, run_workload


class OneEach:
    def __init__(self, fail_at: int | None = None) -> None:
        self.left: dict[int, int] = {}
        self.most = 0
        self.aborted: list[int] = []
        self.steps = 0
        self._fail_at = fail_at

    def versions(self) -> dict[str, str]:
        return {"one-each": "1"}

    def add(self, key: int, token_ids: list[int], max_tokens: int) -> None:
        assert key not in self.left
        self.left[key] = max_tokens

    def step(self) -> list[News]:
        self.steps += 1
        if self.steps == self._fail_at:
            raise RuntimeError("no room\nleft")
        self.most = max(self.most, len(self.left))
        news: list[News] = []
        for key in list(self.left):
            self.left[key] -= 1
            news.append((key, 1, self.left[key] == 0, None))
            if not self.left[key]:
                del self.left[key]
        return news

    def abort(self, key: int) -> None:
        self.aborted.append(key)
        del self.left[key]


def request(max_tokens: int) -> dict[str, Any]:
    return {"token_ids": [1, 2, 3], "max_tokens": max_tokens}


def test_a_closed_loop() -> None:
    pipeline = OneEach()
    loop = Loop(pipeline, 7, 60)
    rows = loop.run([request(count) for count in (3, 1, 2, 4)], 2)
    assert [row.num_tokens for row in rows] == [3, 1, 2, 4]
    assert all(row.finished and row.ended_s >= row.arrivals[-1][0] for row in rows)
    assert (pipeline.most, pipeline.steps, loop.next_key) == (2, 7, 11)


def test_late_requests_end_it() -> None:
    pipeline = OneEach()
    rows, _ = run_workload(
        pipeline,
        {"requests": [request(1000), request(1000)], "late": [request(1), request(1)], "concurrency": 2, "limit_s": 60},
        0,
    )
    assert [row["finished"] for row in rows["late"]] == [True, True]
    assert [(len(row["arrivals"]), row["finished"]) for row in rows["streams"]] == [(10, False)] * 2
    assert pipeline.aborted == [0, 1]


def test_the_time_is_over() -> None:
    rows = Loop(OneEach(), 0, 0.0).run([request(3)], 1)
    assert rows == []


def test_times_that_a_library_tells() -> None:
    import time

    class Told(OneEach):
        def step(self) -> list[News]:
            return [(key, count, done, time.perf_counter() + 5) for key, count, done, _ in super().step()]

    [row] = Loop(Told(), 0, 60).run([request(1)], 1)
    assert row.ended_s >= 5


def test_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = {"name": "W1", "requests": [request(2)], "late": [], "concurrency": 1, "limit_s": 60}
    run_job(OneEach(), {"warmup": [request(1)], "workloads": [work], "out": str(tmp_path)})
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line[1:]) for line in lines] == [{"ready": {"one-each": "1"}}, {"done": "W1"}]
    [row] = json.loads((tmp_path / "W1.json").read_text())["streams"]
    assert (row["num_input"], row["max_tokens"], len(row["arrivals"])) == (3, 2, 2)


def test_a_library_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = {"name": "W1", "requests": [request(2)], "late": [], "concurrency": 1, "limit_s": 60}
    run_job(OneEach(fail_at=2), {"warmup": [request(1)], "workloads": [work], "out": str(tmp_path)})
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last[1:]) == {"failed": "W1", "error": "RuntimeError: no room left"}
