"""The machine that a comparison ran on: its processor by name, and how fast it reads memory and multiplies.

Peaks are measured in a process of their own (`peaks.py`), so that torch is never loaded here.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from pathlib import Path

import msgspec

from llm_inference.errors import EngineError
from llm_inference.native.precision import read_cpu_flags
from llm_inference.telemetry.devices import available_cpus, available_memory_bytes, thread_environment

#: What decides how fast a model runs on a CPU.
_FLAGS = ("avx2", "fma", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "i8mm")
_TIMEOUT_S = 180.0


class Peaks(msgspec.Struct, frozen=True):
    """The best of several tries, by all CPUs that may be used: bytes read, and float32 operations of matrix products,
    a second.
    """

    read_bytes_per_s: float
    gemm_flops_per_s: float


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    num_cpus: int
    flags: tuple[str, ...]
    memory_bytes: int
    platform: str
    python: str


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    flags = read_cpu_flags(cpuinfo)
    return Machine(
        cpu=_cpu_name(cpuinfo),
        num_cpus=available_cpus(),
        flags=tuple(flag for flag in _FLAGS if flag in flags),
        memory_bytes=available_memory_bytes(),
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
    )


async def measure_peaks(*, quick: bool = False) -> Peaks:
    """Takes about ten seconds. Raises `EngineError`."""
    argv = (sys.executable, "-m", "llm_inference.tools.compare.peaks", *(("--quick",) if quick else ()))
    env = {**os.environ, **thread_environment(available_cpus())}
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode:
        raise EngineError(f"the machine's peaks cannot be measured: {err.decode('utf-8', 'replace').strip()[-300:]}")
    return msgspec.json.decode(out.strip().splitlines()[-1], type=Peaks)


def _cpu_name(cpuinfo: Path) -> str:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
