"""What this process may use: memory and CPUs, as the cgroup allows, not as the machine has. Torch-free."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def available_memory_bytes(
    cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo"), membership: Path = _MEMBERSHIP
) -> int:
    """Bytes that can still be had: the smallest of the machine's MemAvailable and each cgroup's limit minus its use.

    Page cache counts as free, as the kernel gives it back: `inactive_file` is subtracted from the cgroup's use.
    """
    machine = _meminfo_available(meminfo)
    limits = [machine]
    files = [(group / "memory.max", group / "memory.current") for group in _groups(cgroup, membership, "")]
    files += [
        (group / "memory.limit_in_bytes", group / "memory.usage_in_bytes")
        for group in _groups(cgroup / "memory", membership, "memory")
    ]
    for limit_file, usage_file in files:
        limit, usage = _read_int(limit_file), _read_int(usage_file)
        if limit is None or usage is None:
            continue
        reclaimable = _stat_value(limit_file.with_name("memory.stat"), ("inactive_file", "total_inactive_file"))
        limits.append(max(limit - max(usage - reclaimable, 0), 0))
    return min(limits)


def available_cpus(cgroup: Path = _CGROUP, membership: Path = _MEMBERSHIP) -> int:
    """CPUs that this process may keep busy: affinity, bounded by its cgroups' quotas, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups(cgroup, membership, ""):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            if quota != "max":
                count = min(count, math.ceil(int(quota) / int(period)))
    for group in _groups(cgroup / "cpu", membership, "cpu"):
        quota_v1, period_v1 = _read_int(group / "cpu.cfs_quota_us"), _read_int(group / "cpu.cfs_period_us")
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


def _groups(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """The folder of `root` and of each group below it on the way to ours; the limits of all of them hold.

    `membership` has a line `number:controllers:path` for each hierarchy, with no controllers in version 2. In a
    container the path often is another namespace's, and nothing is there: then the root is our own group.
    """
    yield root
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = membership.read_text().splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            folder = root
            for part in Path(path.lstrip("/")).parts:
                folder /= part
                yield folder


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
