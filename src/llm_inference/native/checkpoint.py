"""The weights of a model directory as named tensors, whatever files they lie in. Knows nothing of models.

Looked for in this order; the first kind found is the checkpoint:

    model.safetensors.index.json, model.safetensors, any other *.safetensors
    pytorch_model.bin.index.json, pytorch_model.bin, any other *.bin, *.pt, *.pth

Safetensors files are mapped and read tensor by tensor. Pickles are opened with torch's restricted unpickler only.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from llm_inference.errors import SourceError

#: Directories also hold these beside the weights; they are pickles of something else.
_NO_WEIGHTS: Final = ("training_args.bin", "optimizer.pt", "scheduler.pt", "optimizer.bin", "rng_state.pth")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint. `data` lies on the CPU and may be a view of a mapped file: copy what you keep."""

    name: str
    file: Path
    data: torch.Tensor


class Checkpoint:
    """The weight files of one directory."""

    def __init__(self, directory: Path) -> None:
        """Raises `SourceError` when there are no weights, or an index is wrong or names files that are missing."""
        self.directory = directory
        self.files = _find(directory)

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor, file by file. Raises `SourceError` naming the file that cannot be read."""
        for file in self.files:
            yield from _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)


def _find(directory: Path) -> list[Path]:
    for index_name, single, patterns in (
        ("model.safetensors.index.json", "model.safetensors", ("*.safetensors",)),
        ("pytorch_model.bin.index.json", "pytorch_model.bin", ("*.bin", "*.pt", "*.pth")),
    ):
        if (directory / index_name).is_file():
            return _indexed(directory / index_name)
        if (directory / single).is_file():
            return [directory / single]
        files = sorted(path for pattern in patterns for path in directory.glob(pattern) if path.name not in _NO_WEIGHTS)
        if files:
            return files
    raise SourceError(
        f"{directory}: no weights found; looked for *.safetensors, pytorch_model*.bin and *.pt (or their index files)"
    )


def _indexed(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise SourceError(f"{index}: not a readable index of weight files ({exc}); fetch it again") from exc
    files = []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise SourceError(f"{index}: names {name!r}, which is no file of this directory")
        if not (index.parent / name).is_file():
            raise SourceError(f"{index.parent / name}: missing, but {index.name} names it; fetch it again")
        files.append(index.parent / name)
    return files


def _safetensors(file: Path) -> Iterator[Tensor]:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield Tensor(name, file, opened.get_tensor(name))
    except (SafetensorError, OSError) as exc:
        raise SourceError(f"{file}: cannot be read as safetensors ({exc}); fetch it again") from exc


def _pickled(file: Path) -> Iterator[Tensor]:
    content = _restricted_load(file)
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise SourceError(f"{file}: does not hold a plain dictionary of tensors; convert it to safetensors")
    for name in list(content):
        yield Tensor(str(name), file, content.pop(name))


def _restricted_load(file: Path) -> Any:
    """Only tensors and plain containers are ever built; a pickle that asks for more is refused, never run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual protocols: what cannot be read is refused below
            try:
                return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as exc:
                if "mmap" not in str(exc):
                    raise
                # Files from before torch 1.6 cannot be mapped.
                return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as exc:
        raise SourceError(
            f"{file}: refused: this pickle needs more than plain tensors, and running it could run anything. "
            "Convert the model to safetensors where you trust it."
        ) from exc
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as exc:
        raise SourceError(f"{file}: cannot be read ({type(exc).__name__}: {exc}); fetch it again") from exc
