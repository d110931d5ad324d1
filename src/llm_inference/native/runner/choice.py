"""Which runner computes a decoder, and the reason that the log says. Torch-free, and imports no runner.

    compiled   CPUs, weights of 8 or 4 bits and float32: our own kernels, compiled for the CPU that they run on
    openvino   CPUs, bfloat16, and float32 and 8 bits where our kernels are slower or there is no C compiler
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
from llm_inference.native.runner.compiled.build import obstacle as kernels_obstacle
from llm_inference.native.runner.compiled.library import HEAD_DIM_STEP, MAX_HEAD_DIM

RunnerName = Literal["torch", "openvino", "compiled"]
KVCacheDType = Literal["auto", "float32", "int8"]

#: Tokens in a block where the configuration does not say. The faster runners' attention knows no other size.
BLOCK_SIZES: Final[dict[RunnerName, int]] = {"torch": 16, "openvino": 32, "compiled": 32}

#: Its paged attention is no public operation yet: the number of its inputs changes from release to release.
OPENVINO_RELEASE: Final = (2026, 4)
_LLAMA_FAMILY: Final = ("llama", "mistral", "qwen2")
_OPENVINO_QUANTIZATIONS: Final = (None, "int8")
_COMPILED_QUANTIZATIONS: Final = (None, "int8", "int4")
_COMPILED_WEIGHTS: Final = "float32, int8 and int4"
_X86: Final = ("x86_64", "AMD64")
_MACHINES: Final = (*_X86, "aarch64", "arm64")
#: CPU features that openvino computes in bfloat16 with.
_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16"})
#: CPU features that multiply bytes. Without them the compiled runner is slower than openvino in int8 (28 ms where that
#: takes 10, one sequence of the default model); in int4 it is faster than torch all the same (11 ms, 65 ms).
_BYTE_PRODUCTS: Final = frozenset({"avx512_vnni", "avx_vnni"})
#: What our kernels in float32 are the faster ones with.
_WIDE_VECTORS: Final = "avx512f"
_FASTEST_FIRST: Final[tuple[RunnerName, ...]] = ("compiled", "openvino", "torch")


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    name: RunnerName
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be run. `precision` and `quantization` as in `CoreSetup`; `block_size` None: as the runner likes."""

    model_type: str
    head_dim: int
    device: str
    precision: str
    quantization: str | None
    block_size: int | None
    kv_cache_dtype: KVCacheDType = "auto"


@dataclass(frozen=True, slots=True)
class Machine:
    """What it is run on. `openvino`: the version of the installed package; None: there is none.

    `kernels`: asked last, since it may compile them; says why there are none, or None.
    """

    architecture: str
    cpu_flags: frozenset[str]
    openvino: str | None
    kernels: Callable[[], str | None]

    @classmethod
    def this(cls, version: Callable[[str], str] = metadata.version) -> Machine:
        try:
            openvino = version("openvino")
        except metadata.PackageNotFoundError:
            openvino = None
        return cls(platform.machine(), read_cpu_flags(), openvino, kernels_obstacle)


def runner_states(machine: Machine, kernels: str) -> dict[RunnerName, str]:
    """What there is on a CPU, in words; `kernels` as `compiled.build.readiness` says it."""
    wanted = Wanted(
        model_type=_LLAMA_FAMILY[0], head_dim=64, device="cpu", precision="float32", quantization=None, block_size=None
    )
    openvino = next(_openvino_obstacles(wanted, machine), None)
    return {
        "compiled": f"{_COMPILED_WEIGHTS}; {kernels}",
        "openvino": openvino or f"float32, bfloat16 and int8; ready: version {machine.openvino}",
        "torch": "everything else; ready",
    }


def choose_runner(requested: Literal["auto"] | RunnerName, wanted: Wanted, machine: Machine) -> RunnerChoice:
    """Raises `ConfigError` when a runner is asked for by name that cannot do it, or none can."""
    if requested != "auto":
        obstacle = next(_against(requested, wanted, machine, by_name=True), None)
        if obstacle is not None:
            advice = "Leave `kv_cache_dtype` out" if requested == "torch" else "Set `runner: torch`, or leave it out"
            raise ConfigError(f"runner: {requested} cannot serve this: {obstacle}. {advice}.")
        return RunnerChoice(requested, "the configuration says so")
    passed_over: list[str] = []
    for name in _FASTEST_FIRST:
        obstacle = next(_against(name, wanted, machine), None)
        if obstacle is None:
            return RunnerChoice(name, "; ".join([*_why(name, machine), *passed_over]))
        passed_over.append(obstacle)
    raise ConfigError(f"kv_cache_dtype: {wanted.kv_cache_dtype} cannot be had: {'; '.join(passed_over)}. Leave it out.")


def _against(name: RunnerName, wanted: Wanted, machine: Machine, *, by_name: bool = False) -> Iterator[str]:
    """Why it is not taken, the most telling reason first. Who names a runner has it although another is faster."""
    yield from _OBSTACLES[name](wanted, machine)
    if name == "compiled":
        if not by_name:
            yield from _slower(wanted, machine)
        obstacle = machine.kernels()
        if obstacle is not None:
            yield f"the compiled runner is not to be had: {obstacle}"


def _why(name: RunnerName, machine: Machine) -> Iterator[str]:
    """Of torch its obstacles' reasons say it: it is what is left."""
    if name == "compiled":
        yield "it is the fastest one on this CPU"
    if name == "openvino":
        yield f"it is the faster one on a CPU, and openvino {machine.openvino} is installed"


def _compiled_obstacles(wanted: Wanted, machine: Machine) -> Iterator[str]:
    """Of the kernels themselves `_against` asks last."""
    if wanted.device != "cpu":
        yield f"the compiled runner runs on CPUs, and the device is {wanted.device}"
    whole = wanted.quantization is None
    if wanted.quantization not in _COMPILED_QUANTIZATIONS or (whole and wanted.precision != "float32"):
        asked = wanted.quantization or wanted.precision
        yield f"the compiled runner has weights in {_COMPILED_WEIGHTS}, and this model is to be in {asked}"
    yield from _model_obstacles("the compiled runner", wanted)
    if wanted.head_dim % HEAD_DIM_STEP or wanted.head_dim > MAX_HEAD_DIM:
        most = f"a multiple of {HEAD_DIM_STEP} up to {MAX_HEAD_DIM}"
        yield f"the compiled runner has heads of {most} dimensions, and this model's are of {wanted.head_dim}"
    if wanted.precision not in ("float32", "bfloat16"):
        yield f"the compiled runner computes in float32 between products, not in {wanted.precision}"
    yield from _block_obstacles("compiled", "the compiled runner", wanted)


def _slower(wanted: Wanted, machine: Machine) -> Iterator[str]:
    if machine.architecture not in _X86:
        yield f"the compiled runner has been measured on x86 alone, and this machine is {machine.architecture}"
    if wanted.quantization is None and _WIDE_VECTORS not in machine.cpu_flags:
        yield "the compiled runner is not the faster one in float32 on a CPU without AVX-512"
    if wanted.quantization == "int8" and not machine.cpu_flags & _BYTE_PRODUCTS:
        yield "the compiled runner is not the faster one in int8 on a CPU that does not multiply bytes (VNNI)"


def _openvino_obstacles(wanted: Wanted, machine: Machine) -> Iterator[str]:
    release = ".".join(map(str, OPENVINO_RELEASE))
    if wanted.device != "cpu":
        yield f"openvino runs on CPUs, and the device is {wanted.device}"
    yield from _model_obstacles("openvino", wanted)
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
    if wanted.kv_cache_dtype == "int8" and machine.architecture not in _X86:
        yield f"openvino reads a cache of 8 bits on x86 alone, and this machine is {machine.architecture}"
    if wanted.kv_cache_dtype == "float32" and wanted.precision != "float32":
        yield f"openvino keeps keys and values in 8 bits, or in the {wanted.precision} that it computes in"
    yield from _block_obstacles("openvino", "openvino", wanted)


def _torch_obstacles(wanted: Wanted, machine: Machine) -> Iterator[str]:
    """It runs everything, and has one format of the cache: that of the computation."""
    if wanted.kv_cache_dtype not in ("auto", wanted.precision):
        computed = "float" if wanted.precision == "auto" else wanted.precision
        yield f"torch keeps keys and values in the {computed} format that it computes in, not {wanted.kv_cache_dtype}"


def _model_obstacles(who: str, wanted: Wanted) -> Iterator[str]:
    if wanted.model_type not in _LLAMA_FAMILY:
        yield f"{who} has {', '.join(_LLAMA_FAMILY)} models, and this one is of type {wanted.model_type!r}"


def _block_obstacles(name: RunnerName, who: str, wanted: Wanted) -> Iterator[str]:
    if wanted.block_size not in (None, BLOCK_SIZES[name]):
        yield f"{who} needs a block_size of {BLOCK_SIZES[name]}, and {wanted.block_size} is configured"


_OBSTACLES: Final[dict[RunnerName, Callable[[Wanted, Machine], Iterator[str]]]] = {
    "compiled": _compiled_obstacles,
    "openvino": _openvino_obstacles,
    "torch": _torch_obstacles,
}
