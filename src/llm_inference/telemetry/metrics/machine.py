"""What the kernel says of our processes and of the cgroup, and the driver of the GPUs. Absent where a file is.

Files of Linux alone; elsewhere there is nothing. Sources: proc(5), the kernel's cgroup-v2 document.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from llm_inference.telemetry.metrics.gpu import Gpus
from llm_inference.telemetry.metrics.snapshot import Labels

_CLOCK_FIELDS = (13, 14)  # utime and stime in /proc/PID/stat, counted from 0
_THREADS, _START = 19, 21


class Machine:
    """`proc` and `cgroup` are folders, so that tests may give their own."""

    def __init__(
        self, *, gpus: Gpus | None = None, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self.pid = os.getpid()
        self._gpus = gpus
        self._proc = proc
        self._cgroup = cgroup
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._boot_s = _keyed(proc / "stat").get("btime", 0.0)

    def processes(self, pids: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """By the given name; a process that is gone is left out."""
        found = {}
        for name, pid in pids.items():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[name] = self._process(self._proc / str(pid))
        return found

    def once(self) -> dict[str, list[tuple[Labels, float]]]:
        """Of the cgroup and the GPUs, by metric."""
        figures: dict[str, list[tuple[Labels, float]]] = {
            name: [((), value)] for name, value in self._of_cgroup().items()
        }
        if self._gpus is not None:
            figures |= self._gpus.read()
        return figures

    def _process(self, folder: Path) -> dict[str, float]:
        # The name in parentheses may hold anything; what follows the last one is plain.
        line = (folder / "stat").read_text()
        fields = ["", "", *line[line.rindex(")") + 2 :].split()]
        values = {
            "process_cpu_seconds_total": sum(int(fields[place]) for place in _CLOCK_FIELDS) / self._ticks,
            "process_resident_memory_bytes": float(int(fields[23]) * self._page_bytes),
            "process_threads": float(fields[_THREADS]),
        }
        if self._boot_s:
            values["process_start_time_seconds"] = self._boot_s + int(fields[_START]) / self._ticks
        with contextlib.suppress(OSError):
            values["process_open_fds"] = float(len(os.listdir(folder / "fd")))
        return values

    def _of_cgroup(self) -> dict[str, float]:
        root = self._cgroup
        values: dict[str, float] = {}
        if (root / "cgroup.controllers").exists() or (root / "cpu.stat").exists():
            cpu, memory = _keyed(root / "cpu.stat"), _keyed(root / "memory.stat")
            _put(values, "cgroup_cpu_seconds_total", cpu.get("usage_usec"), 1e-6)
            _put(values, "cgroup_cpu_throttled_seconds_total", cpu.get("throttled_usec"), 1e-6)
            _put(values, "cgroup_memory_bytes", _number(root / "memory.current"), 1)
            _put(values, "cgroup_memory_limit_bytes", _number(root / "memory.max"), 1)
            _put(values, "cgroup_oom_kills_total", _keyed(root / "memory.events").get("oom_kill"), 1)
            with contextlib.suppress(OSError, ValueError):
                quota, period = (root / "cpu.max").read_text().split()
                values["cgroup_cpu_limit_cores"] = int(quota) / int(period)
        else:  # version 1: a folder for each controller
            cpu, memory = _keyed(root / "cpu" / "cpu.stat"), _keyed(root / "memory" / "memory.stat")
            _put(values, "cgroup_cpu_seconds_total", _number(root / "cpuacct" / "cpuacct.usage"), 1e-9)
            _put(values, "cgroup_cpu_throttled_seconds_total", cpu.get("throttled_time"), 1e-9)
            _put(values, "cgroup_memory_bytes", _number(root / "memory" / "memory.usage_in_bytes"), 1)
            limit = _number(root / "memory" / "memory.limit_in_bytes")
            _put(values, "cgroup_memory_limit_bytes", limit if limit is not None and limit < 2**62 else None, 1)
            oom = _keyed(root / "memory" / "memory.oom_control")
            _put(values, "cgroup_oom_kills_total", oom.get("oom_kill"), 1)
            quota_us, period_us = (
                _number(root / "cpu" / "cpu.cfs_quota_us"),
                _number(root / "cpu" / "cpu.cfs_period_us"),
            )
            if quota_us is not None and quota_us > 0 and period_us:
                values["cgroup_cpu_limit_cores"] = quota_us / period_us
        _put(values, "cgroup_cpu_periods_total", cpu.get("nr_periods"), 1)
        _put(values, "cgroup_cpu_throttled_periods_total", cpu.get("nr_throttled"), 1)
        if "cgroup_memory_bytes" in values:
            reclaimable = memory.get("inactive_file", memory.get("total_inactive_file", 0.0))
            values["cgroup_memory_bytes"] = max(values["cgroup_memory_bytes"] - reclaimable, 0.0)
        return values


def _put(values: dict[str, float], name: str, value: float | None, unit: float) -> None:
    if value is not None:
        values[name] = value * unit


def _number(path: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text().strip())  # "max" is no number: no limit
    return None


def _keyed(path: Path) -> dict[str, float]:
    """A file of `name value` lines; lines of another shape are passed over."""
    values = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            parts = line.split()
            if len(parts) == 2:
                with contextlib.suppress(ValueError):
                    values[parts[0]] = float(parts[1])
    return values
