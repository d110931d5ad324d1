"""Which floating-point format to compute in, with the reason that the log says. Torch-free: reads CPU flags itself."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

#: CPU features that multiply bfloat16 in hardware; elsewhere it is emulated and several times slower than float32.
_NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


class Precision(NamedTuple):
    dtype: str  # "float32", "float16" or "bfloat16"; "auto": only the device can tell
    reason: str


def choose(requested: str, checkpoint: str, device: str, cpu_flags: frozenset[str] | None = None) -> Precision:
    """`requested` and `checkpoint` are dtype names, `requested` may be "auto". `device` is "cpu" or "cuda…"."""
    if requested != "auto":
        return Precision(requested, "as configured")
    if device != "cpu":
        return Precision("auto", "the device decides")
    if checkpoint == "bfloat16":
        flags = read_cpu_flags() if cpu_flags is None else cpu_flags
        if any(flag in flags for flag in _NATIVE_BFLOAT16):
            return Precision("bfloat16", "the checkpoint is bfloat16 and this CPU multiplies it in hardware")
        return Precision("float32", "this CPU only emulates bfloat16; set `precision: bfloat16` to halve the memory")
    if checkpoint == "float16":
        return Precision("float32", "CPUs are slow and imprecise in the checkpoint's float16")
    return Precision("float32", f"the checkpoint is {checkpoint}")


def gpu_has_bfloat16(capability: tuple[int, int]) -> bool:
    """Whether an NVIDIA GPU of this compute capability multiplies bfloat16 in hardware; older ones emulate it."""
    return capability >= (8, 0)


def read_cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first CPU; empty where there is no such file."""
    try:
        text = path.read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
