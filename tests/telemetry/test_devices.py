from __future__ import annotations

import os
from pathlib import Path

from llm_inference.telemetry.devices import available_cpus, available_memory_bytes

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(tmp_path: Path, gib: int) -> Path:
    return write(tmp_path, {"meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {gib * 2**20} kB\n"}) / "meminfo"


def test_memory_without_a_cgroup_is_the_machines(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path / "none", meminfo(tmp_path, 8)) == 8 * GIB


def test_memory_is_what_the_cgroup_leaves_and_page_cache_counts_as_free(tmp_path: Path) -> None:
    cgroup = write(
        tmp_path / "v2",
        {
            "memory.max": f"{4 * GIB}\n",
            "memory.current": f"{3 * GIB}\n",
            "memory.stat": f"anon 1\ninactive_file {1 * GIB}\n",
        },
    )
    assert available_memory_bytes(cgroup, meminfo(tmp_path, 8)) == 2 * GIB


def test_memory_of_an_unlimited_cgroup_is_the_machines(tmp_path: Path) -> None:
    cgroup = write(tmp_path / "v2", {"memory.max": "max\n", "memory.current": "123\n"})
    assert available_memory_bytes(cgroup, meminfo(tmp_path, 8)) == 8 * GIB


def test_memory_of_cgroup_version_one(tmp_path: Path) -> None:
    cgroup = write(
        tmp_path / "v1",
        {"memory/memory.limit_in_bytes": f"{2 * GIB}", "memory/memory.usage_in_bytes": f"{GIB}"},
    )
    assert available_memory_bytes(cgroup, meminfo(tmp_path, 8)) == GIB


def test_cpus_are_bounded_by_the_quota(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert available_cpus(tmp_path / "none") == cores
    assert available_cpus(write(tmp_path / "max", {"cpu.max": "max 100000\n"})) == cores
    assert available_cpus(write(tmp_path / "half", {"cpu.max": "50000 100000\n"})) == 1
    assert (
        available_cpus(write(tmp_path / "v1", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}))
        == 1
    )


def test_limits_of_every_group_on_the_way_to_ours_hold(tmp_path: Path) -> None:
    """As under systemd, whose units are groups below the root, which has no limits itself."""
    own = "system.slice/llm.service"
    membership = write(tmp_path, {"membership": f"1:cpu:/elsewhere\n0::/{own}\n"}) / "membership"
    cgroup = write(
        tmp_path / "v2",
        {
            "system.slice/memory.max": f"{6 * GIB}\n",
            "system.slice/memory.current": f"{1 * GIB}\n",
            f"{own}/memory.max": f"{4 * GIB}\n",
            f"{own}/memory.current": f"{1 * GIB}\n",
            f"{own}/cpu.max": "100000 100000\n",
        },
    )
    assert available_memory_bytes(cgroup, meminfo(tmp_path, 8), membership) == 3 * GIB
    assert available_cpus(cgroup, membership) == 1
    (cgroup / "system.slice" / "memory.max").write_text(f"{2 * GIB}\n")
    assert available_memory_bytes(cgroup, meminfo(tmp_path, 8), membership) == 1 * GIB
    for text in ("0::/\n", "", "nonsense", "0::/../../elsewhere\n"):
        membership.write_text(text)
        assert available_memory_bytes(cgroup, meminfo(tmp_path, 8), membership) == 8 * GIB


def test_groups_of_version_one_are_found_by_their_controller(tmp_path: Path) -> None:
    membership = write(tmp_path, {"membership": "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"}) / "membership"
    cgroup = write(
        tmp_path / "v1",
        {
            "memory/job/memory.limit_in_bytes": f"{2 * GIB}",
            "memory/job/memory.usage_in_bytes": f"{GIB}",
            "cpu/job/cpu.cfs_quota_us": "100000",
            "cpu/job/cpu.cfs_period_us": "100000",
        },
    )
    assert available_memory_bytes(cgroup, meminfo(tmp_path, 8), membership) == GIB
    assert available_cpus(cgroup, membership) == 1
