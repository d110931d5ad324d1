"""The kernel's files, as recorded or made, and this very process."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from llm_inference.telemetry.metrics.machine import Machine


def test_this_process_as_the_standard_library_sees_it() -> None:
    machine = Machine()
    found = machine.processes({"me": os.getpid(), "gone": 2**22 + 1})
    assert found.keys() == {"me"}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert found["me"]["process_cpu_seconds_total"] == pytest.approx(usage.ru_utime + usage.ru_stime, abs=0.2)
    assert 0 < found["me"]["process_resident_memory_bytes"] <= usage.ru_maxrss * 1024 * 1.01
    assert found["me"]["process_threads"] >= 1
    assert found["me"]["process_open_fds"] >= 3
    assert 0 < time.time() - found["me"]["process_start_time_seconds"] < 24 * 3600


def test_a_hostile_process_name(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    fields = ["S", *["0"] * 10, "250", "50", *["0"] * 4, "3", "0", "100", "0", "2", *["0"] * 20]
    (folder / "stat").write_text(f"7 (a) b (c) {' '.join(fields)}\n")
    figures = Machine(proc=tmp_path).processes({"x": 7})["x"]
    assert figures["process_cpu_seconds_total"] == 300 / os.sysconf("SC_CLK_TCK")
    assert figures["process_threads"] == 3
    assert figures["process_resident_memory_bytes"] == 2 * os.sysconf("SC_PAGE_SIZE")


def once(cgroup: Path) -> dict[str, float]:
    return {name: value for name, [(_, value)] in Machine(cgroup=cgroup).once().items()}


def test_cgroup_version_2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cpu.stat").write_text(
        "usage_usec 2500000\nuser_usec 1\nnr_periods 40\nnr_throttled 8\nthrottled_usec 700000\n"
    )
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    (tmp_path / "memory.max").write_text("9000\n")
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert once(tmp_path) == pytest.approx(
        {
            "cgroup_cpu_seconds_total": 2.5,
            "cgroup_cpu_limit_cores": 1.5,
            "cgroup_cpu_periods_total": 40,
            "cgroup_cpu_throttled_periods_total": 8,
            "cgroup_cpu_throttled_seconds_total": 0.7,
            "cgroup_memory_bytes": 3500,
            "cgroup_memory_limit_bytes": 9000,
            "cgroup_oom_kills_total": 1,
        }
    )


def test_no_limit_is_absent(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert once(tmp_path) == {"cgroup_memory_bytes": 5000}


def test_cgroup_version_1(tmp_path: Path) -> None:
    for folder, files in {
        "cpu": {"cpu.stat": "nr_periods 4\nnr_throttled 1\nthrottled_time 3000000000\n", "cpu.cfs_quota_us": "200000",
                "cpu.cfs_period_us": "100000"},
        "cpuacct": {"cpuacct.usage": "7000000000\n"},
        "memory": {"memory.usage_in_bytes": "800\n", "memory.limit_in_bytes": "9223372036854771712\n",
                   "memory.stat": "total_inactive_file 300\n",
                   "memory.oom_control": "oom_kill_disable 0\noom_kill 2\n"},
    }.items():  # fmt: skip
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    found = once(tmp_path)
    assert found["cgroup_cpu_seconds_total"] == 7
    assert found["cgroup_cpu_throttled_seconds_total"] == 3
    assert found["cgroup_cpu_limit_cores"] == 2
    assert found["cgroup_memory_bytes"] == 500
    assert "cgroup_memory_limit_bytes" not in found
    assert found["cgroup_oom_kills_total"] == 2


def test_elsewhere_there_is_nothing(tmp_path: Path) -> None:
    machine = Machine(proc=tmp_path / "no", cgroup=tmp_path / "none")
    assert machine.once() == {}
    assert machine.processes({"x": 1}) == {}
