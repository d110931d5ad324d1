"""What this process may use: memory and CPUs, as the cgroup allows, not as the machine has. Torch-free."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that can still be had: the smaller of the machine's MemAvailable and the cgroup's limit minus its use.

    Page cache counts as free, as the kernel gives it back: `inactive_file` is subtracted from the cgroup's use.
    """
    machine = _meminfo_available(meminfo)
    limits = [machine]
    for limit_file, usage_file in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory" / "memory.usage_in_bytes"),
    ):
        limit, usage = _read_int(limit_file), _read_int(usage_file)
        if limit is None or usage is None:
            continue
        reclaimable = _stat_value(limit_file.with_name("memory.stat"), ("inactive_file", "total_inactive_file"))
        limits.append(max(limit - max(usage - reclaimable, 0), 0))
    return min(limits)


def available_cpus(cgroup: Path = _CGROUP) -> int:
    """CPUs that this process may keep busy: affinity, bounded by the cgroup's quota, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    quota_v1 = _read_int(cgroup / "cpu" / "cpu.cfs_quota_us")
    period_v1 = _read_int(cgroup / "cpu" / "cpu.cfs_period_us")
    if quota_v1 is not None and period_v1 and quota_v1 > 0:
        count = min(count, math.ceil(quota_v1 / period_v1))
    return max(count, 1)


def thread_environment(num_threads: int) -> dict[str, str]:
    """Variables for a process that computes on `num_threads` CPUs, to be set before its libraries are loaded.

    Threads that wait spin for about as long as the gap between two layers, then sleep. Measured on two cores, a decode
    step of the default model in ms, alone and beside two busy processes: 34 and 160 to 430 with libgomp's own long
    spin, 43 to 49 and 67 when they sleep at once (`OMP_WAIT_POLICY=PASSIVE`), 36 to 41 and 80 to 110 with this.
    """
    return {"OMP_NUM_THREADS": str(num_threads), "GOMP_SPINCOUNT": "2500"}


def has_nvidia_gpu() -> bool:
    """Whether the driver's device files are there; torch-free, so that a front may decide without loading torch."""
    return Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia/version").exists()


def _meminfo_available(path: Path) -> int:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return pages * size


def _read_int(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text().strip())
    return None


def _stat_value(path: Path, keys: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, value = line.split()
            if name in keys:
                return int(value)
    return 0
