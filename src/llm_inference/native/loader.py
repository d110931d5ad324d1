"""From a model directory to a model in memory: every weight exactly once, or an error that names it.

    Checkpoint ──(name, file, tensor)──► the model's slots ──► kernels on the device

Peak memory is the model plus about one layer. Knows nothing of architectures: the model says what it needs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import torch
from tqdm import tqdm

from llm_inference.errors import OutOfMemoryError, SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native import precision
from llm_inference.native.checkpoint import Checkpoint, Tensor
from llm_inference.native.layers.linear import KernelFactory, Placement
from llm_inference.native.layers.weights import WeightSlot
from llm_inference.native.models.base import CausalLM, Encoder
from llm_inference.native.models.registry import encoder_class, model_class
from llm_inference.native.quantization.registry import kernel_factory

logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", CausalLM, Encoder)

#: Buffers that old checkpoints carry and every implementation computes itself.
IGNORED_SUFFIXES: Final = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")


def resolve_dtype(requested: str, spec: ModelSpec, device: torch.device) -> tuple[torch.dtype, str]:
    """The format to compute in, and the reason for the log. `requested`: "auto", "float32", "float16" or "bfloat16".

    Auto on a CPU: see `precision.choose`. On a GPU: the checkpoint's own half precision; for a float32 checkpoint
    bfloat16 where the GPU has it, else float16. Raises `UnsupportedModelError` if the device cannot do what was asked.
    """
    name, reason = precision.choose(requested, spec.dtype, "cpu" if device.type == "cpu" else str(device))
    if name == "auto":
        name, reason = spec.dtype, f"the checkpoint is {spec.dtype}"
        has_bfloat16 = device.type != "cuda" or precision.gpu_has_bfloat16(torch.cuda.get_device_capability(device))
        if name == "bfloat16" and not has_bfloat16:
            name, reason = "float16", "the checkpoint is bfloat16, which this GPU does not have"
        elif name not in ("bfloat16", "float16"):
            name = "bfloat16" if has_bfloat16 else "float16"
            reason = f"half the memory of the checkpoint's {spec.dtype}; set `precision: float32` to keep it"
    dtype = getattr(torch, name, None)
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedModelError(f"precision {name!r} is none to compute in: float32, float16 or bfloat16")
    return dtype, reason


def load_model(
    directory: Path,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
    kernel: KernelFactory | None = None,
    progress: bool = False,
) -> CausalLM:
    """Load the weights of `directory`. `quantization`: None, "int8" or "int4" (of the linear layers, while loading).
    `kernel`: what makes their kernels, where it is not the quantization's own.

    Raises `UnsupportedModelError` for an unknown architecture or quantization, `SourceError` for a missing, left-over,
    repeated, misshapen or unreadable tensor, `OutOfMemoryError`.
    """
    placement = Placement(dtype, device, kernel or kernel_factory(quantization))
    return _load(directory, spec, placement, model_class(spec.model_type), lambda model: str, quantization, progress)


def load_encoder(
    directory: Path,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
    progress: bool = False,
) -> Encoder:
    """The same for an encoder, whose own names for tensors hold."""
    placement = Placement(dtype, device, kernel_factory(quantization))
    factory = encoder_class(spec.model_type)
    return _load(directory, spec, placement, factory, lambda encoder: encoder.tensor_name, quantization, progress)


def _load(
    directory: Path,
    spec: ModelSpec,
    placement: Placement,
    factory: Callable[[ModelSpec, Mapping[str, Any], Placement], ModelT],
    naming: Callable[[ModelT], Callable[[str], str | None]],
    quantization: str | None,
    progress: bool,
) -> ModelT:
    started_s = time.monotonic()
    refuse_quantized(directory, spec)
    config = read_config(directory)
    device = placement.device
    with out_of_memory_explained(directory, spec, device):
        model = factory(spec, config, placement)
        fill_slots(model, Checkpoint(directory), naming(model), progress)
        model.finish()
    logger.info(
        "loaded %s: %d parameters, %.0f MiB as %s on %s, in %.1f s",
        directory.name,
        spec.num_parameters,
        model.num_bytes / 2**20,
        quantization or str(placement.dtype).removeprefix("torch."),
        device,
        time.monotonic() - started_s,
    )
    return model


class Slotted(Protocol):
    """What weights can be put into: a model, or a collection of them."""

    def slots(self) -> dict[str, WeightSlot]: ...

    def optional(self) -> frozenset[str]: ...


def fill_slots(
    model: Slotted, checkpoint: Checkpoint, naming: Callable[[str], str | None] = str, progress: bool = False
) -> None:
    """Every tensor of `checkpoint` into its slot. `naming`: a tensor's name → the slot's, None: of no use.

    Raises `SourceError` for a missing, left-over, repeated, misshapen or unreadable tensor.
    """
    slots = model.slots()
    optional = model.optional()
    stored: dict[str, Path] = {}
    left_over: list[str] = []
    bar = tqdm(
        total=len(slots), desc="loading weights", unit=" tensors", file=sys.stderr, disable=None if progress else True
    )
    with bar:
        for tensor in checkpoint.tensors():
            name = naming(tensor.name)
            if name is None:
                continue
            slot = slots.get(name)
            if slot is None:
                if not tensor.name.endswith(IGNORED_SUFFIXES):
                    left_over.append(f"{tensor.name} ({tensor.file.name})")
                continue
            if name in stored:
                raise SourceError(
                    f"{checkpoint.directory}: the tensor {tensor.name!r} is in {stored[name].name} and again in "
                    f"{tensor.file.name}; remove the file that does not belong to the model"
                )
            _check(tensor, slot.shape)
            slot.store(tensor.data)
            stored[name] = tensor.file
            bar.update()
    missing = [name for name in slots if name not in stored and name not in optional]
    if missing:
        raise SourceError(
            f"{checkpoint.directory}: the weights lack {_listed(missing)}; nothing may stay uninitialised: "
            "fetch the model again or correct its config.json"
        )
    if left_over:
        raise SourceError(
            f"{checkpoint.directory}: the weights hold {_listed(left_over)}, which this architecture does not use; "
            "config.json and the weights do not belong together"
        )


def _check(tensor: Tensor, shape: tuple[int, ...]) -> None:
    found = tuple(tensor.data.shape)
    if found != shape:
        raise SourceError(
            f"{tensor.file}: the tensor {tensor.name!r} has the shape {list(found)}, "
            f"but config.json asks for {list(shape)}"
        )
    if not tensor.data.is_floating_point():
        raise SourceError(f"{tensor.file}: the tensor {tensor.name!r} is {tensor.data.dtype}, not a floating-point one")


def refuse_quantized(directory: Path, spec: ModelSpec) -> None:
    """Raises `UnsupportedModelError` for a checkpoint that is quantized already."""
    if spec.quantization_config is not None:
        method = spec.quantization_config.get("quant_method", "an unnamed method")
        raise UnsupportedModelError(
            f"{directory}: the checkpoint is quantized with {method}, which the native engine does not read; serve the "
            "unquantized model with `quantization: int8` or `int4`, or choose another engine (`engine:`)"
        )


def read_config(directory: Path) -> Mapping[str, Any]:
    """config.json as it is. Raises `SourceError`."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise SourceError(f"{path}: cannot be read ({exc})") from exc
    if not isinstance(config, dict):
        raise SourceError(f"{path}: must hold a JSON object")
    return config


def _listed(names: list[str], limit: int = 5) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


@contextlib.contextmanager
def out_of_memory_explained(directory: Path, spec: ModelSpec, device: torch.device) -> Iterator[None]:
    """Whatever says inside that memory is short becomes an `OutOfMemoryError` with the sizes of the weights."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as exc:
        raise _out_of_memory(directory, spec, device) from exc
    except RuntimeError as exc:
        if "allocate memory" not in str(exc):
            raise
        raise _out_of_memory(directory, spec, device) from exc


def _out_of_memory(directory: Path, spec: ModelSpec, device: torch.device) -> OutOfMemoryError:
    sizes = ", ".join(f"{name} {spec.weight_bytes(name) / 2**30:.1f} GiB" for name in ("bfloat16", "int8", "int4"))
    return OutOfMemoryError(
        f"{directory}: the weights do not fit into the memory of {device}; they would take, by `precision`: {sizes}"
    )
