"""Which runner computes a decoder, and the reason that the log says. Torch-free, and imports no runner.

    openvino   CPUs: the faster one, for the architectures and formats that it has
    torch      everything else, and the reference

Decided before a core is started, since a runner has a say in the size of KV blocks, and so in the size of the cache.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal

from llm_inference.errors import ConfigError
from llm_inference.native.precision import read_cpu_flags

RunnerName = Literal["torch", "openvino"]

#: Tokens in a block where the configuration does not say. OpenVINO's attention knows no other size on a CPU.
BLOCK_SIZES: Final[dict[RunnerName, int]] = {"torch": 16, "openvino": 32}

#: Its paged attention is no public operation yet: the number of its inputs changes from release to release.
OPENVINO_RELEASE: Final = (2026, 4)
_OPENVINO_MODELS: Final = ("llama", "mistral", "qwen2")
_OPENVINO_QUANTIZATIONS: Final = (None, "int8")
_X86: Final = ("x86_64", "AMD64")
_MACHINES: Final = (*_X86, "aarch64", "arm64")
#: CPU features that it computes in bfloat16 with.
_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16"})


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    name: RunnerName
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be run. `precision` and `quantization` as in `CoreSetup`; `block_size` None: as the runner likes."""

    model_type: str
    device: str
    precision: str
    quantization: str | None
    block_size: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """What it is run on. `openvino`: the version of the installed package; None: there is none."""

    architecture: str
    cpu_flags: frozenset[str]
    openvino: str | None

    @classmethod
    def this(cls, version: Callable[[str], str] = metadata.version) -> Machine:
        try:
            openvino = version("openvino")
        except metadata.PackageNotFoundError:
            openvino = None
        return cls(platform.machine(), read_cpu_flags(), openvino)


def choose_runner(requested: Literal["auto"] | RunnerName, wanted: Wanted, machine: Machine) -> RunnerChoice:
    """Raises `ConfigError` when a runner is asked for by name that cannot do it."""
    if requested == "torch":
        return RunnerChoice("torch", "the configuration says so")
    obstacle = next(_obstacles(wanted, machine), None)
    if requested == "openvino":
        if obstacle is not None:
            raise ConfigError(f"runner: openvino cannot serve this: {obstacle}. Set `runner: torch`, or leave it out.")
        return RunnerChoice("openvino", "the configuration says so")
    if obstacle is not None:
        return RunnerChoice("torch", obstacle)
    return RunnerChoice("openvino", f"it is the faster one on a CPU, and openvino {machine.openvino} is installed")


def _obstacles(wanted: Wanted, machine: Machine) -> Iterator[str]:
    """Why openvino cannot be taken, the most telling reason first."""
    release = ".".join(map(str, OPENVINO_RELEASE))
    if wanted.device != "cpu":
        yield f"openvino runs on CPUs, and the device is {wanted.device}"
    if wanted.model_type not in _OPENVINO_MODELS:
        yield f"openvino has {', '.join(_OPENVINO_MODELS)} models, and this one is of type {wanted.model_type!r}"
    if machine.openvino is None:
        yield f"the package openvino {release} is not installed (it comes with the extra `cpu` of this package)"
    elif tuple(machine.openvino.split(".")[:2]) != tuple(map(str, OPENVINO_RELEASE)):
        yield f"openvino {machine.openvino} is installed, and {release} is needed"
    if machine.architecture not in _MACHINES:
        yield f"openvino runs on {', '.join(_MACHINES)}, and this machine is {machine.architecture}"
    if machine.architecture in _X86 and machine.cpu_flags and "avx2" not in machine.cpu_flags:
        yield "openvino's attention needs AVX2, which this CPU does not have"
    if wanted.quantization not in _OPENVINO_QUANTIZATIONS:
        yield f"openvino cannot quantize to {wanted.quantization}"
    if wanted.precision == "bfloat16" and not machine.cpu_flags & _BFLOAT16:
        yield "openvino computes in bfloat16 only on x86 CPUs that have it in hardware"
    if wanted.precision not in ("float32", "bfloat16"):
        yield f"openvino computes in float32 or bfloat16, not in {wanted.precision}"
    if wanted.block_size not in (None, BLOCK_SIZES["openvino"]):
        yield f"openvino needs a block_size of {BLOCK_SIZES['openvino']}, and {wanted.block_size} is configured"
