"""Which attention the torch runner uses, and the reason that the log says. Torch-free.

    flash_attn   NVIDIA GPUs, half precision: the package flash-attn, blocks of 256 tokens
    flashinfer   the same GPUs: the package flashinfer-python, blocks of any size
    sdpa         everything else: torch's own operators, over blocks that are gathered first

Asked twice: by the front, which knows neither the GPU's capability nor always the precision, and by the core, which
knows all. What is not known yet is no obstacle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Final, Literal

from llm_inference.errors import ConfigError

AttentionName = Literal["sdpa", "flash_attn", "flashinfer"]

#: Tokens in a block where the configuration does not say.
BLOCK_SIZES: Final[dict[AttentionName, int]] = {"sdpa": 16, "flash_attn": 256, "flashinfer": 16}

#: flash-attn 2 reads pages whose size is a multiple of this.
FLASH_ATTN_PAGE: Final = 256
#: Module → (package, releases from, below): the first with all arguments that are used, and the next major one.
PACKAGES: Final[dict[AttentionName, tuple[str, tuple[int, int], tuple[int, int]]]] = {
    "flash_attn": ("flash-attn", (2, 6), (3, 0)),
    "flashinfer": ("flashinfer-python", (0, 2), (1, 0)),
}
_MIN_CAPABILITY: Final = (8, 0)
_HALF: Final = ("float16", "bfloat16")
_FLASHINFER_HEADS: Final = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    name: AttentionName
    reason: str
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWanted:
    """What is to be attended. `capability`: of the GPU, None where it is not known; `precision` may be "auto" then.

    `block_size`: as configured; None: as the attention likes.
    """

    device: str
    precision: str
    head_dim: int
    capability: tuple[int, int] | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class InstalledPackages:
    """`version`: of a package, raises `PackageNotFoundError`. `import_error`: of a module, None if it can be imported;
    asked last, and by the core alone, since it loads torch."""

    version: Callable[[str], str] = metadata.version
    import_error: Callable[[str], str | None] = lambda module: None


def import_error(module: str) -> str | None:
    """Why `module` cannot be imported: a package made for another torch is installed and of no use."""
    try:
        import_module(module)
    except Exception as exc:  # a wrong ABI shows in many ways
        return str(exc).strip().partition("\n")[0] or type(exc).__name__
    return None


def choose_attention(
    requested: Literal["auto"] | AttentionName, wanted: AttentionWanted, installed: InstalledPackages
) -> AttentionChoice:
    """Raises `ConfigError` when one is asked for by name that cannot be had."""
    if requested != "auto":
        obstacle = next(_obstacles(requested, wanted, installed), None)
        if obstacle is not None:
            raise ConfigError(
                f"attention: {requested} cannot be had: {obstacle}. Set `attention: sdpa`, or leave it out."
            )
        return _choice(requested, "the configuration says so", wanted)
    if wanted.device == "cpu":
        return _choice("sdpa", "the device is a CPU", wanted)
    passed_over: list[str] = []
    for name in ("flash_attn", "flashinfer"):
        obstacle = next(_obstacles(name, wanted, installed), None)
        if obstacle is None:
            why = f"{PACKAGES[name][0]} {installed.version(PACKAGES[name][0])} is installed and fits"
            return _choice(name, "; ".join([why, *passed_over]), wanted)
        passed_over.append(obstacle)
    return _choice("sdpa", "; ".join(passed_over), wanted)


def _choice(name: AttentionName, reason: str, wanted: AttentionWanted) -> AttentionChoice:
    return AttentionChoice(name, reason, wanted.block_size or BLOCK_SIZES[name])


def _obstacles(name: AttentionName, wanted: AttentionWanted, installed: InstalledPackages) -> Iterator[str]:
    """Why it cannot be taken, the most telling reason first; of sdpa none."""
    if name == "sdpa":
        return
    if not wanted.device.startswith("cuda"):
        yield f"{name} runs on NVIDIA GPUs, and the device is {wanted.device}"
    if wanted.precision not in (*_HALF, "auto"):
        yield f"{name} computes in {' or '.join(_HALF)}, not in {wanted.precision}"
    if wanted.capability is not None and wanted.capability < _MIN_CAPABILITY:
        yield (
            f"{name} needs a GPU of compute capability {_dotted(_MIN_CAPABILITY)} (Ampere) or above, and this one "
            f"has {_dotted(wanted.capability)}"
        )
    if name == "flash_attn":
        if wanted.head_dim > 256 or wanted.head_dim % 8:
            yield f"flash_attn has heads of up to 256 in steps of 8, and this model's are of {wanted.head_dim}"
        if wanted.block_size is not None and wanted.block_size % FLASH_ATTN_PAGE:
            yield (
                f"flash_attn reads blocks of {FLASH_ATTN_PAGE} tokens or a multiple, and block_size is "
                f"{wanted.block_size}"
            )
    elif wanted.head_dim not in _FLASHINFER_HEADS:
        yield f"flashinfer has heads of {_listed(_FLASHINFER_HEADS)}, and this model's are of {wanted.head_dim}"
    yield from _package_obstacles(name, installed)


def _package_obstacles(name: AttentionName, installed: InstalledPackages) -> Iterator[str]:
    package, first, end = PACKAGES[name]
    needed = f"{_dotted(first)} or above, below {end[0]},"
    try:
        version = installed.version(package)
    except metadata.PackageNotFoundError:
        yield f"the package {package} ({needed.rstrip(',')}) is not installed"
        return
    if not first <= _release(version) < end:
        yield f"{package} {version} is installed, and {needed} is needed"
    reason = installed.import_error(name)
    if reason is not None:
        yield f"{package} {version} is installed and cannot be imported ({reason})"


def _release(version: str) -> tuple[int, int]:
    """Of "2.8.3.post1": (2, 8). (0, 0) for what is no number."""
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return 0, 0


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _listed(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
